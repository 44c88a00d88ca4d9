"""Reads the log of turns of a finished run, to compute its simulated time again."""

import csv
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import cast, get_args

from fedexp.errors import InputError
from fedexp.system.turns import Outcome, TurnRecord

FILE_NAME = "turns.csv"
_NUMBERS = ("client", "samples", "steps", "download_bytes", "upload_bytes")


def read_turns(folder: Path) -> dict[int, Sequence[TurnRecord]]:
    """Number of a round -> the turns of this round, from ``turns.csv`` in the run's folder.

    Raises InputError if the file is missing or damaged.
    """
    path = folder / FILE_NAME
    found: dict[int, list[TurnRecord]] = defaultdict(list)
    try:
        with path.open(newline="", encoding="utf-8") as file:
            rows = csv.DictReader(file)
            if missing := {"round", "outcome", *_NUMBERS}.difference(rows.fieldnames or ()):
                raise ValueError(f"it has no column {min(missing)}")
            for row in rows:
                numbers = {name: int(row[name]) for name in _NUMBERS}
                if row["outcome"] not in get_args(Outcome):
                    raise ValueError(f"{row['outcome']!r} is no outcome")
                outcome = cast(Outcome, row["outcome"])
                found[int(row["round"])].append(TurnRecord(**numbers, outcome=outcome))
    except FileNotFoundError:
        raise InputError(
            f"{folder}: has no {FILE_NAME}; runs of older versions, and runs without "
            "measure.turns, cannot be replayed"
        ) from None
    except (KeyError, ValueError, TypeError, OSError, csv.Error) as error:
        raise InputError(f"{path}: cannot be read ({error})") from None
    return dict(found)
