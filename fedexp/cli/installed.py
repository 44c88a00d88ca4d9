"""Installed packages that add options.

A package names its config folder as an entry point of the group ``fedexp.conf``, in its
``pyproject.toml``::

    [project.entry-points."fedexp.conf"]
    my-method = "my_method:conf"

``my_method/conf/loss/robust.yaml`` is then ``loss=robust``, like an option of fedexp.
"""

import sys
from collections.abc import Iterator
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec
from pathlib import Path

from fedexp.config.option_files import GROUP

OWN = ("hydra", "main", "schema", "command-line")
"""Names of Hydra's config sources that are not installed packages."""


def config_folders() -> Iterator[tuple[str, Path]]:
    """(origin, config folder) of each registered package; the origin is its name and version.

    A package whose folder is missing is left out, with one line on standard error.
    """
    for point in sorted(entry_points(group=GROUP), key=lambda point: point.name):
        if (folder := _folder(point)) is not None:
            yield _origin(point), folder
        else:
            _say_once(
                f"fedexp: {_origin(point)}: its options are left out, as its entry point "
                f"{point.name}={point.value} names no folder; write PACKAGE:FOLDER"
            )


@cache  # Hydra looks for the folders at every start, and a suggestion starts Hydra again
def _say_once(line: str) -> None:
    print(line, file=sys.stderr)


def _folder(point: EntryPoint) -> Path | None:
    """The folder that an entry point ``package:conf`` names: ``conf`` inside ``package``.

    None if there is no such folder. The package is not imported, because that could be slow.
    """
    try:
        spec = find_spec(point.module)
    except (ImportError, ValueError):
        return None
    roots = (spec.submodule_search_locations if spec else None) or []
    folders = (Path(root, point.attr or "conf") for root in roots)
    return next((folder.resolve() for folder in folders if folder.is_dir()), None)


def _origin(point: EntryPoint) -> str:
    return f"{point.dist.name} {point.dist.version}" if point.dist else point.name
