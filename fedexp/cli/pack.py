"""The ``fedexp-pack`` command: runs as an artefact that anyone can check."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from fedexp.cli.parsers import home_path
from fedexp.cli.pipes import one_line_command


@one_line_command("fedexp-pack")
def main(arguments: Sequence[str] | None = None) -> None:
    """The ``fedexp-pack`` command; exit code 1 if the runs cannot be packed."""
    options = _parse(arguments)
    from fedexp.verification.pack import pack  # slow to import

    names = pack(options.source, options.to, options.with_checkpoints)
    for name in names:
        print(name)
    print(f"{options.to}: {len(names)} files; check it with fedexp-verify {options.to}")


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="fedexp-pack",
        description="Packs a run or a sweep into a zip file: configs, own code, metrics, "
        "partitions, where they came from, a report, and a README with the command that checks "
        "all of it. Folders and the name of this machine are left out.",
    )
    add = parser.add_argument
    add("source", type=home_path, metavar="RUN_OR_SWEEP", help="the folder of a run or a sweep")
    add("to", type=home_path, metavar="FILE.zip", help="the file to write")
    add("--with-checkpoints", action="store_true", help="also pack the trained weights")
    return parser.parse_intermixed_args(arguments)


if __name__ == "__main__":
    main()
