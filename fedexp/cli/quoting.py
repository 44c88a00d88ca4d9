"""Values that Hydra's grammar refuses, such as ``a=b`` or ``[a#b]``, and how to write them."""

import os
import re
import shlex
from collections.abc import Iterator, Sequence

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override, Quote, QuotedString
from hydra.errors import HydraException

_HOME = re.compile(r"""(^|[,\[(:])(\s*)(["']?)(~[^,\])}"']*)\3""")
"""A value, or an element of a list, that begins with ``~``; quoted or not."""

_BRACKETS = re.compile(
    r"(\[|\{|(?:choice|glob|shuffle|sort|tag)\()(.*)([\])}])", flags=re.ASCII | re.DOTALL
)
"""A list, a dictionary or a call of Hydra's functions, with its opening, inside and closing."""

_NO_KEY = re.compile(r"\$\{(?![^{}]*\})")
"""The beginning of a reference such as ``${seed}``, without its end."""

_QUOTED = re.compile(r""""(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])*'""", flags=re.DOTALL)


def with_home(words: Sequence[str]) -> list[str]:
    """The words of a command line, in which a path may begin with ``~`` as in a shell.

    Hydra reads ``~/data`` only in quotes. Hydra itself uses the keys below ``hydra``, and takes no
    home folder, so there ``~`` is replaced.
    """
    return [_with_home(each) for each in words]


def parsed(word: str) -> Override | None:
    """The word as Hydra's grammar reads it; None if the grammar refuses the word."""
    try:
        return OverridesParser.create().parse_override(word)
    except HydraException:
        return None


def quoted_word(word: str, is_sweep: bool) -> str | None:
    """The word with quotes for Hydra and for a shell; None if its key is refused, too.

    Args:
        word: a word that Hydra refuses, such as ``x=[a#b]``.
        is_sweep: whether commas separate the values of a sweep; if not, they belong to the value.
    """
    key, _, value = word.partition("=")
    if parsed(f"{key}=0") is None:
        return None
    parts = list(_split(value)) if is_sweep else [value]
    readable = f"{key}={','.join(map(_readable, parts))}"
    return shlex.quote(f"{key}={quoted(value)}" if parsed(readable) is None else readable)


def quoted(text: str) -> str:
    """The text in double quotes, which Hydra reads as this text; ``${seed}`` stays a reference."""
    return QuotedString(_NO_KEY.sub(r"\${", text), Quote.double).with_quotes()


def _with_home(word: str) -> str:
    key, equals, value = word.partition("=")
    if word.startswith("-") or not equals or "~" not in value:
        return word
    is_hydra_s = key.startswith("hydra.")

    def home(found: re.Match[str]) -> str:
        before, space, quote, path = found.groups()
        if quote and not is_hydra_s:
            return found[0]
        return before + space + quoted(os.path.expanduser(path) if is_hydra_s else path)

    changed = f"{key}={_HOME.sub(home, value)}"
    return word if parsed(changed) is None else changed


def _readable(text: str) -> str:
    """A value or element in Hydra's grammar: as it is, or with its parts quoted, or quoted."""
    if parsed(f"key={text}") is not None:
        return text
    if found := _BRACKETS.fullmatch(text.strip()):
        opening, inside, closing = found.groups()
        part = _entry if opening == "{" else _readable
        changed = opening + ",".join(map(part, _split(inside))) + closing
        if parsed(f"key={changed}") is not None:
            return changed
    return quoted(text)


def _entry(text: str) -> str:
    """An entry of a dictionary. Hydra takes no quotes around its key."""
    name = _QUOTED.match(text.strip())
    key, rest = (name[0][1:-1], text.strip()[name.end() :]) if name else ("", text)
    before, _, value = rest.partition(":")
    return f"{key or before.strip()}:{_readable(value.strip())}"


def _split(text: str) -> Iterator[str]:
    """The parts between commas, except commas inside quotes or brackets."""
    depth, begin, place = 0, 0, 0
    while place < len(text):
        if found := _QUOTED.match(text, place):
            place = found.end()
            continue
        depth += (text[place] in "[{(") - (text[place] in ")}]")
        if text[place] == "," and not depth:
            yield text[begin:place]
            begin = place + 1
        place += 1
    yield text[begin:]
