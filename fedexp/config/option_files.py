"""The YAML files of chosen options, for errors that name the file in which a mistake is."""

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from fedexp.config.keys import override_key
from fedexp.errors import InputError

GROUP = "fedexp.conf"
"""The entry points with which installed packages add options; see ``fedexp.cli.installed``."""

_OWN_TREE = "main"
"""Hydra's name of fedexp's own config tree."""


@contextmanager
def named_in_errors(
    choices: Mapping[str, str | None], folders: Mapping[Path, str], overrides: Sequence[str]
) -> Iterator[None]:
    """Begin an error about an option's class with the option's file, if the user wrote the file.

    Args:
        choices: config group -> chosen option.
        folders: folder with options -> its provider, in Hydra's order.
        overrides: the overrides on the command line.
    """
    try:
        yield
    except InputError as error:
        key = re.match(r"(\w+)(?:\.(?!_target_)(\w+))?(?=\._target_|=)", str(error))
        typed = {override_key(each) for each in overrides}
        if key is None or {key[0], f"{key[0]}._target_"} & (typed - choices.keys()):
            raise
        file = _file(key[1], key[2] or choices.get(key[1]), folders)
        if file is None:
            raise
        raise InputError(f"{shown(file)}: {error}") from error


def _file(group: str, option: str | None, folders: Mapping[Path, str]) -> Path | None:
    """The file of an option; None if there is none, or if it is in fedexp's own config tree."""
    for folder, provider in folders.items():
        path = folder / group / f"{option}.yaml"
        if path.is_file():
            return None if provider == _OWN_TREE else path
    return None


def shown(path: Path) -> str:
    """The path as users write it: relative if it is below the current folder."""
    here = Path.cwd()
    return str(path.relative_to(here) if path.is_relative_to(here) else path)
