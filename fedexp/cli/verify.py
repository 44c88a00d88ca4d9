"""The ``fedexp-verify`` command: checks a result by computing it again."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from fedexp.cli.parsers import home_path
from fedexp.cli.pipes import quiet_in_a_pipe
from fedexp.errors import InputError

if TYPE_CHECKING:
    from fedexp.verification.run import Ways
    from fedexp.verification.verdict import Verdict

_ALL = 1_000_000


@quiet_in_a_pipe()
def main(arguments: Sequence[str] | None = None) -> None:
    """The ``fedexp-verify`` command; exit code 0: the same, 1: differs, 2: cannot be compared."""
    options = _parse(arguments)
    try:
        if not options.what.exists():  # before the imports, which take seconds
            raise InputError(f"{options.what}: does not exist")
        from fedexp.verification.verdict import worst
        from fedexp.verification.verify import verify

        verdicts = verify(options.what, ways_of(options, options.places, options.to))
        for each in verdicts:
            print("\n  ".join([f"{each.place}: {each.line}", *each.details]))
        if options.to is not None:
            _write(options.to, verdicts)
    except InputError as error:
        print(f"fedexp-verify: {error}", file=sys.stderr)
        raise SystemExit(2) from None
    if code := worst(verdicts):
        raise SystemExit(int(code))


def ways_of(
    options: argparse.Namespace, places: Sequence[str] = (), to: Path | None = None
) -> Ways:
    """How to check, from the flags of ``add_ways``. Raises InputError for a wrong place."""
    from fedexp.cli.compose import composed, composed_and_checked  # slow to import
    from fedexp.verification.run import Ways

    return Ways(
        rounds=options.rounds,
        cache=str(home_path(composed([]).config["data"]["cache"]).absolute()),
        places=dict(map(_place, places)),
        runs_own_code=options.run_own_code,
        to=to and to.absolute(),
        jobs=options.jobs,
        seed=options.seed,
        compose=composed_and_checked,
    )


def _place(word: str) -> tuple[str, str]:
    """``data.root=FOLDER`` as (key, value). Raises InputError for other words."""
    from fedexp.verification.places import KEYS  # slow to import

    key, equals, value = word.partition("=")
    if not equals or key not in KEYS:
        known = ", ".join(f"{each}=PATH" for each in KEYS)
        raise InputError(f"{word}: a result is checked with its own config; there are {known}")
    return key, str(home_path(value).resolve())


def _write(folder: Path, verdicts: Sequence[Verdict]) -> None:
    """Write ``verdict.json``. Raises InputError."""
    from fedexp.reporting.files import write_contents  # slow to import

    found = [{**vars(each), "outcome": each.outcome.name.lower()} for each in verdicts]
    write_contents({"verdict.json": json.dumps(found, indent=1).encode() + b"\n"}, folder)


def _rounds(text: str) -> int:
    if text == "all":
        return _ALL
    return _positive(text)


def _positive(text: str) -> int:
    if not text.isdecimal() or not 0 < int(text) <= _ALL:
        raise argparse.ArgumentTypeError(f"{text}: should be a whole number above 0")
    return int(text)


def add_ways(parser: argparse.ArgumentParser) -> None:
    """Add the flags that say how much is checked."""
    add = parser.add_argument
    add(
        "--rounds",
        type=_rounds,
        default=5,
        metavar="N",
        help="rounds to train again (5), or all",
    )
    add("--jobs", type=_positive, default=3, metavar="N", help="runs of a sweep to check (3)")
    add("--seed", type=int, default=0, help="draws these runs (0)")
    add(
        "--run-own-code",
        action="store_true",
        help="run code that is not fedexp's, after you have read it; without it the code is shown",
    )


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="fedexp-verify",
        description="Checks a result: trains the first rounds of its runs again and compares "
        "every metric; computes the numbers of a report again. The exit code is 0 if all is the "
        "same, 1 if something differs, and 2 if it cannot be compared.",
    )
    add = parser.add_argument
    add(
        "what",
        type=home_path,
        metavar="RESULT",
        help="a run, a sweep, a folder of them, a report, an artefact (FILE.zip), or an "
        "app of fedexp-flower",
    )
    add(
        "places",
        nargs="*",
        metavar="KEY=PATH",
        help="where data and other files are on this machine, such as data.root=~/cifar",
    )
    add("--to", type=home_path, metavar="DIR", help="write the verdict and the rounds trained")
    add_ways(parser)
    return parser.parse_intermixed_args(arguments)


if __name__ == "__main__":
    main()
