"""The methods of other projects beside ours, from ``docs/coming_from/methods.yaml``."""

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import yaml

from generate.options import CONF, GROUPS, default, find
from generate.text import code, escape, table
from generate.yaml_comments import read

SOURCE = Path(__file__).parents[1] / "coming_from" / "methods.yaml"
_HEADER = ("theirs", "their defaults", "fedexp", "our defaults", "what differs")
_NOT_OF_THE_METHOD = ("objective", "measure.")
"""Beginnings of keys of presets that are not settings of the method."""

_INTERPOLATION = re.compile(r"[$][{]([^}]*)[}]")
_DEFAULTED = re.compile(r"oc[.]select:([^,]*),(.*)")
_KEY = re.compile(r"[a-z]\w*(?:[.]\w+)*=[\w.]*\w|[a-z]\w*(?:[.]\w+)+")
"""A key with its value, or a key with dots: typeset as code."""


@dataclass(frozen=True)
class Method:
    """A method of another project.

    Attributes:
        name: as on its command line.
        defaults: its settings in the code: name -> value.
        ours: the overrides that choose it here; empty if it is not here.
        differs: how the two differ besides their defaults, one sentence or more.
        missing: why it is not here.
    """

    name: str
    defaults: dict[str, object] = field(default_factory=dict)
    ours: str = ""
    differs: str = ""
    missing: str = ""


@dataclass(frozen=True)
class Project:
    """A project with its methods.

    Attributes:
        defaults: settings that all its methods have: name -> value.
        keys: our keys with the same meaning, in the same order.
        methods: in the order of its own list.
    """

    defaults: dict[str, object]
    keys: list[str]
    methods: list[Method]


@cache
def projects() -> dict[str, Project]:
    """The projects by the names of their pages."""
    return {
        name: Project(each["defaults"], each["keys"], [Method(**row) for row in each["methods"]])
        for name, each in yaml.safe_load(SOURCE.read_text()).items()
    }


def own_defaults(overrides: str) -> dict[str, str]:
    """The settings of the parts that these overrides choose, as written in ``conf/``.

    A setting that is an override itself is left out.
    """
    words = [word.partition("=")[::2] for word in overrides.split()]
    # Of two options of a group the later one is composed, in the place of the first.
    chosen = dict(pair for word in words for pair in _options(*word))
    found = {
        key.name: key.default
        for group, name in chosen.items()
        for key in find(group, name).keys
        if key.default and not key.name.startswith(_NOT_OF_THE_METHOD)
    }
    return {key: value for key, value in found.items() if key not in dict(words)}


def _options(group: str, name: str) -> Iterator[tuple[str, str]]:
    """The option (group, name), after the options that it chooses; none if it is no option."""
    if group in GROUPS:
        for chosen in find(group, name).choices:
            yield from _options(*chosen)
        yield group, name


def common_defaults(keys: Sequence[str]) -> dict[str, str]:
    """The values of these keys if no option changes them."""
    found = {key.name: key.default for key in read(CONF / "config.yaml").keys}
    found |= {key.name: key.default for key in find("optimizer", default("optimizer")).keys}
    return {key: found[key] for key in keys}


def methods_table(name: str) -> str:
    """All methods of a project beside ours, as a Markdown table."""
    project = projects()[name]
    ours = _listed(common_defaults(project.keys))
    first = ("all methods", _listed(project.defaults), "", ours, "")
    return table(_HEADER, [first, *map(_row, project.methods)])


def _row(method: Method) -> tuple[str, ...]:
    theirs = escape(method.name), _listed(method.defaults)
    if method.missing:
        return *theirs, "not here", "", _prose(method.missing)
    own = _listed(own_defaults(method.ours))
    return *theirs, code(method.ours), own, _prose(method.differs)


def _prose(text: str) -> str:
    return escape(_KEY.sub(r"`\g<0>`", text))


def _listed(settings: dict[str, str] | dict[str, object]) -> str:
    """The settings as code."""
    return ", ".join(code(f"{name}={_written(value)}") for name, value in settings.items())


def _written(value: object) -> str:
    """A value as in YAML, with the other key in place of an interpolation: ``${b}`` is ``b``."""
    text = value if isinstance(value, str) else json.dumps(value)
    return _DEFAULTED.sub(r"\1 or \2", _INTERPOLATION.sub(r"\1", text))
