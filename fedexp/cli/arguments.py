"""The words of a command line: flags may stand anywhere among the overrides."""

import argparse
import os
import re
from collections import deque
from collections.abc import Mapping, Sequence
from difflib import get_close_matches

from hydra._internal.utils import get_args_parser

from fedexp.errors import InputError


def config_dir_in(arguments: Sequence[str]) -> str | None:
    """The value of ``--config-dir``, if any, on a command line that Hydra accepts."""
    found: str | None = get_args_parser().parse_known_args(arguments)[0].config_dir
    return found


def flags_last(arguments: Sequence[str]) -> list[str]:
    """Move Hydra's flags behind the overrides, as Hydra takes no overrides on both sides of a flag.

    Raises:
        InputError: there is no such flag, or a key is written like a flag.
    """
    actions: Mapping[str, argparse.Action] = get_args_parser()._option_string_actions
    overrides: list[str] = []
    flags: list[str] = []
    words = deque(arguments)
    while words:
        word = words.popleft()
        if not word.startswith("-"):
            overrides.append(word)
            continue
        name, equals, value = word.partition("=")
        flags.append(f"{name}={os.path.expanduser(value)}" if equals else word)
        action = actions[_full_name(name, word, list(actions))]
        if words and not equals and _takes(action, words[0]):
            flags.append(os.path.expanduser(words.popleft()))
    return [*overrides, *flags]


def _takes(action: argparse.Action, word: str) -> bool:
    """Whether the word after a flag is the flag's value."""
    if action.nargs == "?":
        return word in (action.choices or ())
    return action.nargs != 0 and not word.startswith("-")


def _full_name(name: str, word: str, known: Sequence[str]) -> str:
    """The flag that a word begins with; long flags may be shortened. Raises InputError."""
    if name in known:
        return name
    found = [each for each in known if each.startswith(name) and name.startswith("--")]
    if len(found) == 1:
        return found[0]
    if found:
        raise InputError(f"{word}: could be {' or '.join(found)}")
    if re.fullmatch(r"--[\w./@]+", name):
        value = word.partition("=")[2] or "VALUE"
        raise InputError(f"{word}: keys are written without dashes: {name[2:]}={value}")
    similar = get_close_matches(name, known, n=1)
    advice = f"did you mean {similar[0]}?" if similar else "--hydra-help lists the flags"
    raise InputError(f"{word}: no such flag; {advice}")
