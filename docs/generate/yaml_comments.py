"""The keys of a YAML file with the comments beside them."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import yaml

from generate.text import checked

_NOT_KEYS = ("_target_", "defaults", "hydra")
"""Keys of a file's top level that say how it is composed."""


@dataclass(frozen=True)
class Key:
    """One key of a config file.

    Attributes:
        name: with the keys around it, such as ``scale.init``.
        default: its value as written in the file; empty for a group of keys.
        meaning: the comment on its line, then the comment lines before it.
    """

    name: str
    default: str
    meaning: str


@dataclass(frozen=True)
class CommentedFile:
    """One config file.

    Attributes:
        header: the comment at its top.
        values: its content, with interpolations as written.
        keys: its keys in their order.
        is_global: whether its keys are those of the whole config (``@package _global_``).
    """

    header: str
    values: dict[str, object]
    keys: list[Key]
    is_global: bool


def read(path: Path) -> CommentedFile:
    """Read one config file; raises FormulaError if a formula in its comments cannot be read."""
    text = path.read_text()
    lines = text.splitlines()
    top = [line for line in _leading_comments(lines) if not line.startswith("@package")]
    root = yaml.compose(text, yaml.SafeLoader)
    keys = list(_keys(root, lines, "")) if isinstance(root, yaml.MappingNode) else []
    is_global = lines[:1] == ["# @package _global_"]
    for written in (" ".join(top), *(key.meaning for key in keys)):
        checked(written, str(path))
    return CommentedFile(" ".join(top), yaml.safe_load(text) or {}, keys, is_global)


def _leading_comments(lines: list[str]) -> list[str]:
    found = []
    for line in lines:
        if not line.startswith("#"):
            break
        found.append(line.removeprefix("#").strip())
    return found


def _keys(node: yaml.MappingNode, lines: list[str], prefix: str) -> Iterator[Key]:
    for name, value in node.value:
        if not prefix and name.value in _NOT_KEYS:
            continue
        if name.value == "_target_":
            continue
        full = f"{prefix}{name.value}"
        is_block = isinstance(value, yaml.CollectionNode) and not value.flow_style
        is_group = is_block and isinstance(value, yaml.MappingNode)
        end = name.end_mark if is_block else value.end_mark
        after = lines[end.line][end.column :].partition("#")[2].strip()
        notes = _notes_before(lines, name.start_mark.line)
        if not is_group or after:
            meaning = ". ".join(filter(None, (after, " ".join(notes))))
            yield Key(full, "" if is_group else _written(value, lines), meaning)
        if is_group:
            yield from _keys(value, lines, f"{full}.")


def _written(node: yaml.Node, lines: list[str]) -> str:
    """The value as written, in one line; a block ends before the next key's line."""
    start, end = node.start_mark, node.end_mark
    if start.line == end.line:
        return lines[start.line][start.column : end.column].strip()
    return " ".join(line.strip() for line in lines[start.line : end.line])


def _notes_before(lines: list[str], line: int) -> list[str]:
    """The comment lines directly before a key that are not the file's header."""
    first = line
    while first > 0 and lines[first - 1].lstrip().startswith("#"):
        first -= 1
    found = [each.lstrip().removeprefix("#").strip() for each in lines[first:line]]
    return found if first > 0 else []
