"""The version of the code that runs."""

import tomllib
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path


def code_version() -> str | None:
    """The version in the ``pyproject.toml`` beside the code or, if it is installed, the package's.

    A clone that stands first on Python's path runs in place of an installed package, whose version
    may be another. None if no version is found.
    """
    try:
        project = tomllib.loads(_PROJECT.read_text(encoding="utf-8"))["project"]
        if project["name"] == "fedexp":
            return str(project["version"])
    except (OSError, ValueError, LookupError, TypeError):
        pass
    try:
        return version("fedexp")
    except PackageNotFoundError:
        return None


_PROJECT = Path(__file__).parents[1] / "pyproject.toml"
