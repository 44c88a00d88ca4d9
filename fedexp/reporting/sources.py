"""``sources.json``: the files that the numbers of a report came from, with their digests."""

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from fedexp.reporting.baseline import Baselines
from fedexp.reporting.report import Report
from fedexp.reporting.runs import Run
from fedexp.reporting.statistics import ROUNDS_TO_BASELINE
from fedexp.state.run_folder import FILE_NAME as IDENTITY
from fedexp.state.run_folder import METRICS, SUMMARY

FILE_NAME = "sources.json"
_READ = (IDENTITY, METRICS, SUMMARY)


def sources(
    report: Report, folder: Path, written: Sequence[Path], arguments: Mapping[str, Any] | None
) -> bytes:
    """The content of ``sources.json``.

    Args:
        report: the report.
        folder: the folder of its files.
        written: the files with numbers.
        arguments: what ``arguments_of`` returns; None if the numbers do not follow from the runs
            alone, as in a replay.
    """
    content = {
        "from": os.path.relpath(Path.cwd(), folder.resolve()),
        "arguments": arguments,
        "runs": [_source(run) for run in report.runs],
        "files": {path.name: file_digest(path) for path in written},
        "rows": {
            f"{name}.csv": _rows(report, name, frame) for name, frame in report.frames.items()
        },
    }
    return json.dumps(content, indent=1).encode() + b"\n"


def arguments_of(
    paths: Sequence[Path], formats: Sequence[str], every_figure: bool = False, **read: Any
) -> dict[str, Any]:
    """The arguments of a report, so that it can be made again.

    Args:
        paths: the folders of its runs.
        formats: the formats of its files.
        every_figure: whether every figure is drawn.
        **read: further arguments of ``Report.read``.
    """
    places = list(map(str, paths))
    return {"read": {"paths": places, **read}, "write": [formats, every_figure]}


def made_again(arguments: Mapping[str, Any]) -> Report:
    """Read the runs again and make the same report. Raises InputError."""
    return Report.read(**arguments["read"])


def file_digest(path: Path) -> str:
    """SHA-256 of a file's content."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _source(run: Run) -> dict[str, Any]:
    paths = (run.folder / name for name in _READ)
    files = {path.name: file_digest(path) for path in paths if path.is_file()}
    return {"folder": run.place, "seed": run.seed, "files": files}


def _rows(report: Report, name: str, frame: pd.DataFrame) -> list[list[int]]:
    """For each row of the frame with this name, the numbers of the runs behind it."""
    if name == "paper":
        every = list(enumerate(report.runs))
        found = (verdict.folders for verdict in report.verdicts)
        return [[n for n, run in every if run.folder in own] for own in found]
    baselines = report.ablation.full if name == "ablation" else report.baselines
    return [_runs_of(report, row, baselines) for row in frame.to_dict("records")]


def _runs_of(report: Report, row: Mapping[Any, Any], baselines: Baselines) -> list[int]:
    """The runs with the label and the seed of the row; without a seed, all that are finished.

    If the row compares the label with its baseline, the runs of both with the seeds that both have.
    """
    label = tuple((key, row[key]) for key in report.keys)
    compares = "difference" in row or row.get("metric") == ROUNDS_TO_BASELINE
    labels = {label, baselines.get(label, label)} if compares else {label}
    numbered = enumerate(zip(report.runs, report.labels, strict=True))
    own = [(n, run) for n, (run, each) in numbered if each in labels]
    if "seed" in row:
        return [n for n, run in own if run.seed == row["seed"]]
    groups = (report.configurations[each] for each in labels)
    seeds = set.intersection(*({run.seed for run in runs if run.finished} for runs in groups))
    return [n for n, run in own if run.finished and run.seed in seeds]
