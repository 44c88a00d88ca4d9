"""The ``fedexp-leaderboard`` command: the page of a contest from the files of its sweeps."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from fedexp.cli.parsers import home_path, refuse
from fedexp.cli.pipes import one_line_command
from fedexp.cli.verify import add_ways, ways_of


@one_line_command("fedexp-leaderboard")
def main(arguments: Sequence[str] | None = None) -> None:
    """The ``fedexp-leaderboard`` command; exit code 1 if nothing could be read."""
    options = _parse(arguments)
    from fedexp.reporting.leaderboard.entries import with_entries  # slow to import
    from fedexp.reporting.leaderboard.files import read_contest, read_csv, write
    from fedexp.reporting.leaderboard.repetition import repetition, verdicts_again

    earlier = None if options.repeats is None else read_csv(options.repeats)
    results, problems = read_contest(options.sources, earlier)
    first = []
    if earlier is not None:
        first = [repetition(results, earlier), verdicts_again(results, earlier)]
    if options.entries is not None:
        from fedexp.verification.entries import checked_entries

        with TemporaryDirectory() as unpacked:
            by, to = options.checked_by, Path(unpacked)
            ways = ways_of(options, options.place)
            entries, wrong = checked_entries(options.entries, ways, by, to)
            results, table, left_out = with_entries(results, options.sources, entries)
            problems += [*wrong, *left_out]
        first += [] if table is None else [table]
    for path in write(results, options.to, first):
        print(path)
    for problem in problems:
        print(problem, file=sys.stderr)


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="fedexp-leaderboard",
        description="Writes the tables and pictures of a contest, such as "
        "fedexp -m experiment=leaderboard/digits. Several sweeps of one contest are joined, also "
        "with a table that this command wrote earlier.",
    )
    add = parser.add_argument
    what = "the folder of a sweep, or an earlier leaderboard.csv"
    add("sources", nargs="+", type=home_path, metavar="SWEEP", help=what)
    add("--to", type=home_path, metavar="DIR", required=True, help="the folder to write to")
    what = "add how far ranks and gains are from this earlier leaderboard.csv, for example of runs "
    what += "with hydra.sweeper.tune.chosen and other seeds"
    add("--repeats", type=home_path, metavar="TABLE", help=what)
    add(
        "--entries",
        type=home_path,
        metavar="DIR",
        help="add the methods of the artefacts (*.zip) in this folder, each checked first",
    )
    add("--checked-by", default="not said", metavar="NAME", help="who checks, for the page")
    add(
        "--place",
        action="append",
        default=[],
        metavar="KEY=PATH",
        help="where the entries' data and other files are on this machine, such as "
        "data.root=~/cifar; once for each key",
    )
    add_ways(parser)
    options = parser.parse_intermixed_args(arguments)
    if options.entries is None:
        of_entries = ("checked_by", "place", "rounds", "jobs", "seed", "run_own_code")
        refuse(parser, options, of_entries, "only with --entries")
    elif not any(each.is_dir() for each in options.sources):
        parser.error("--entries needs the folder of a sweep, which entries are compared with")
    return options


if __name__ == "__main__":
    main()
