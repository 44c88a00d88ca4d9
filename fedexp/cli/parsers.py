"""Flags that several commands have, and paths in flags."""

import argparse
import os
from collections.abc import Iterable
from pathlib import Path


def home_path(text: str | Path) -> Path:
    """The path in a flag; ``~`` is the home folder, which a shell leaves in ``--to=~/report``."""
    return Path(os.path.expanduser(text))  # unlike Path's method, it keeps a user it cannot find


def add_config_dir(parser: argparse.ArgumentParser) -> None:
    """Add the flag for a folder of the user's options, with the names that Hydra gives it."""
    parser.add_argument(
        *("--config-dir", "-cd"),
        type=home_path,
        metavar="DIR",
        help="a folder with options of your own, as for fedexp",
    )


def refuse(
    parser: argparse.ArgumentParser, options: argparse.Namespace, names: Iterable[str], reason: str
) -> None:
    """Exit with an error if a flag of these names has another value than its default.

    The error is ``reason`` behind the flags, such as ``--format and --figures: only with --to``.
    """
    typed = [name for name in names if getattr(options, name) != parser.get_default(name)]
    if typed:
        flags = " and ".join(f"--{name.replace('_', '-')}" for name in typed)
        parser.error(f"{flags}: {reason}")
