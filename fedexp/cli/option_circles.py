"""Finds option files whose ``defaults`` include each other in a circle."""

from collections.abc import Iterable, Iterator, Sequence
from graphlib import CycleError, TopologicalSorter
from pathlib import Path, PurePosixPath
from typing import Any

from omegaconf import OmegaConf


def circle(folders: Sequence[Path]) -> list[Path]:
    """The files of one circle, the first file again at the end; empty if there is no circle.

    Args:
        folders: folders with options, in the order in which Hydra looks for an option.
    """
    files = (path for folder in folders for path in sorted(folder.glob("**/*.yaml")))
    try:
        TopologicalSorter({file: list(_included(file, folders)) for file in files}).prepare()
    except CycleError as error:
        found: list[Path] = error.args[1]  # each file is included by the next
        return found[::-1]
    return []


def _included(file: Path, folders: Sequence[Path]) -> Iterator[Path]:
    """The files that the ``defaults`` of a file name."""
    node: Any = OmegaConf.to_container(OmegaConf.load(file))
    entries = node.get("defaults") if isinstance(node, dict) else None
    home = next(folder for folder in folders if file.is_relative_to(folder))
    group = PurePosixPath(file.parent.relative_to(home).as_posix())
    for name in _names(entries or (), group):
        paths = (folder / f"{name}.yaml" for folder in folders)
        yield from [path for path in paths if path.is_file()][:1]


def _names(entries: Iterable[Any], group: PurePosixPath) -> Iterator[PurePosixPath]:
    """The options that the entries of a ``defaults`` list in this group include."""
    for entry in entries:
        pairs = entry.items() if isinstance(entry, dict) else [("", entry)]
        for key, options in pairs:
            below = key.split()[-1].partition("@")[0] if key else ""
            place = PurePosixPath(below[1:]) if below.startswith("/") else group / below
            for option in options if isinstance(options, list) else [options]:
                yield place / str(option)
