"""The options of all config groups, read from ``conf/``."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from generate.yaml_comments import CommentedFile, Key, read

CONF = Path(__file__).parents[2] / "conf"

GROUPS = {
    "algorithm": "Methods: presets of the sockets below",
    "head": "Socket: features to logits",
    "loss": "Socket: what local training minimises",
    "regularizer": "Socket: a penalty on the parameters",
    "gradient": "Socket: where a local step takes its gradient",
    "personalization": "Socket: what is shared, and what a client's own model is",
    "sampler": "Socket: which clients take part in a round",
    "aggregator": "Socket: how the server merges the updates",
    "faults": "Drop-outs, stragglers, broken and hostile updates",
    "compression": "How weights are encoded that travel",
    "system": "Simulated devices, and the time that rounds take on them",
    "availability": "When clients can be chosen, in simulated time",
    "data": "Datasets and readers",
    "partition": "How samples are spread over clients",
    "model": "Networks without their head",
    "optimizer": "The local optimizer",
    "schedule": "The learning rate over rounds",
    "coordination": "When clients start, and when the server steps",
    "engine": "How clients are trained on the hardware",
    "measure": "What is measured after a round",
    "evaluation": "How measures are computed",
    "tracking": "Where results are recorded",
    "protocol": "Settings that a paper's cells share",
    "compare": "The same clipping, weights and classifier for all methods",
    "search": "Spaces for a search of settings",
    "hydra/launcher": "Where the jobs of a sweep run",
    "hydra/sweeper": "Which jobs a sweep has",
}
"""Config group -> what it is about; a group without options has keys only."""


@dataclass(frozen=True)
class Option:
    """One option of one config group.

    Attributes:
        group: such as ``head``.
        name: such as ``prototype``.
        summary: the comment at the top of its file.
        target: dotted name of the class or function that it configures; empty for a preset.
        keys: its keys with their whole names, such as ``head.rho``.
        bases: options of the same group whose keys it starts from.
        choices: group -> option that it chooses in other groups.
    """

    group: str
    name: str
    summary: str
    target: str
    keys: tuple[Key, ...]
    bases: tuple[str, ...] = ()
    choices: tuple[tuple[str, str], ...] = ()

    @property
    def override(self) -> str:
        """What chooses it on the command line."""
        return f"{'+' if self.group == 'measure' else ''}{self.group}={self.name}"

    @property
    def is_default_measure(self) -> bool:
        """Whether it is a measure that is on without being chosen."""
        return self.group == "measure" and f"- measure/{self.name} " in _main()

    @property
    def page(self) -> str:
        """The name of its page below ``docs/``, without ending."""
        return f"options/{self.group}/{self.name}"


@cache
def options(group: str) -> tuple[Option, ...]:
    """The options of a group, by name."""
    return tuple(_option(group, path.stem) for path in sorted((CONF / group).glob("*.yaml")))


@cache
def find(group: str, name: str) -> Option:
    """One option by its name."""
    return next(each for each in options(group) if each.name == name)


def all_options() -> Iterator[Option]:
    """The options of all groups."""
    for group in GROUPS:
        yield from options(group)


@cache
def default(group: str) -> str:
    """The name of the option that a group has if nothing chooses another one."""
    entries = read(CONF / "config.yaml").values["defaults"]
    assert isinstance(entries, list)
    return next(str(each[group]) for each in entries if isinstance(each, dict) and group in each)


@cache
def _main() -> str:
    """The main config; each line ends in a space."""
    return (CONF / "config.yaml").read_text().replace("\n", " \n")


@cache
def _option(group: str, name: str) -> Option:
    file = read(CONF / group / f"{name}.yaml")
    own = tuple(replace(key, name=_full_name(group, file, key)) for key in file.keys)
    target = _target(group, file)
    bases, choices = _defaults(group, file)
    keys = own
    for base in reversed(bases):
        parent = _option(group, base)
        keys = _merged(parent.keys, keys)
        target = target or parent.target
        choices = (*parent.choices, *choices)
    last = {each if each[0] == "measure" else each[0]: each for each in choices}
    return Option(group, name, file.header, target, keys, tuple(bases), tuple(last.values()))


def _full_name(group: str, file: CommentedFile, key: Key) -> str:
    return key.name if file.is_global else f"{group.replace('/', '.')}.{key.name}"


def _target(group: str, file: CommentedFile) -> str:
    node: object = file.values
    if file.is_global:
        node = file.values.get(group, {})
    elif group == "measure":
        (node,) = file.values.values()
    return str(node.get("_target_", "")) if isinstance(node, dict) else ""


def _defaults(group: str, file: CommentedFile) -> tuple[list[str], list[tuple[str, str]]]:
    """The options of the same group that a file starts from, and its choices in other groups."""
    bases: list[str] = []
    choices: list[tuple[str, str]] = []
    entries = file.values.get("defaults", [])
    for entry in entries if isinstance(entries, list) else []:
        if isinstance(entry, str):
            own = entry.removeprefix(f"/{group}/")
            if own.startswith("/"):
                chosen, _, name = own[1:].rpartition("/")
                choices.append((chosen, name))
            elif (CONF / group / f"{own}.yaml").exists():
                bases.append(own)
        else:
            ((where, name),) = entry.items()
            chosen = where.removeprefix("override ").removeprefix("/").partition("@")[0]
            choices.append((chosen, str(name)))
    return bases, choices


def _merged(inherited: tuple[Key, ...], own: tuple[Key, ...]) -> tuple[Key, ...]:
    """The inherited keys with the file's own values and comments, then its further keys."""
    mine = {key.name: key for key in own}
    found = [
        replace(mine[key.name], meaning=mine[key.name].meaning or key.meaning)
        if key.name in mine
        else key
        for key in inherited
    ]
    names = {key.name for key in inherited}
    return (*found, *(key for key in own if key.name not in names))
