"""The ``fedexp-leaderboard`` command: the page of a contest from the files of its sweeps."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from fedexp.cli.parsers import home_path
from fedexp.cli.pipes import one_line_command
from fedexp.cli.verify import add_ways, ways_of


@one_line_command("fedexp-leaderboard")
def main(arguments: Sequence[str] | None = None) -> None:
    """The ``fedexp-leaderboard`` command; exit code 1 if nothing could be read."""
    options = _parse(arguments)
    from fedexp.reporting.leaderboard.entries import with_entries  # slow to import
    from fedexp.reporting.leaderboard.files import write
    from fedexp.reporting.leaderboard.results import read_results

    results, problems = read_results(options.sweeps)
    table = None
    if options.entries is not None:
        from fedexp.verification.entries import checked_entries

        with TemporaryDirectory() as unpacked:
            by, to = options.checked_by, Path(unpacked)
            entries, wrong = checked_entries(options.entries, ways_of(options), by, to)
            results, table, left_out = with_entries(results, options.sweeps, entries)
            problems += [*wrong, *left_out]
    for path in write(results, options.to, table):
        print(path)
    for problem in problems:
        print(problem, file=sys.stderr)


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="fedexp-leaderboard",
        description="Writes the tables and pictures of a contest, such as "
        "fedexp -m experiment=leaderboard/digits. Several sweeps of one contest are joined.",
    )
    add = parser.add_argument
    add("sweeps", nargs="+", type=home_path, metavar="SWEEP", help="the folder of a sweep")
    add("--to", type=home_path, metavar="DIR", required=True, help="the folder to write to")
    add(
        "--entries",
        type=home_path,
        metavar="DIR",
        help="add the methods of the artefacts (*.zip) in this folder, each checked first",
    )
    add("--checked-by", default="not said", metavar="NAME", help="who checks, for the page")
    add_ways(parser)
    return parser.parse_intermixed_args(arguments)


if __name__ == "__main__":
    main()
