"""``metrics.jsonl``: the metrics of a run, one line for each round, readable during the run."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedexp.state.atomic import write_atomically
from fedexp.state.run_folder import METRICS as FILE_NAME
from fedexp.tracking.tracker import Record, RunInfo, Tracker

if TYPE_CHECKING:
    import pandas as pd

PER_CLASS = "global/per_class_accuracy"
_BEFORE_CLASSES = f', "{PER_CLASS}": {{'.encode()


class JsonLines(Tracker):
    """Writes each round's metrics to ``metrics.jsonl`` in the run's folder, without buffering.

    Class accuracies are in ``global/per_class_accuracy`` as ``{class: accuracy}``. A record without
    metrics (round 0) writes nothing. When a run is resumed, the file is cut to the rounds of its
    checkpoint, since later rounds are trained again.
    """

    essential = True

    def __init__(self, run: RunInfo) -> None:
        path = run.folder / FILE_NAME
        write_atomically(path, b"".join(map(line, run.past)))
        self._file = path.open("ab", buffering=0)

    def log(self, record: Record) -> None:
        """Write one line."""
        rest = line(record)
        while rest:  # a full disk may write only a part; the next call raises the error
            rest = rest[self._file.write(rest) :]

    def finish(self, summary: Mapping[str, Any] | None) -> None:
        """Close the file."""
        self._file.close()


def line(record: Record) -> bytes:
    """The record as a line of JSON; empty if the record has no metrics."""
    if not record.metrics:
        return b""
    values: dict[str, Any] = {"round": record.round, **record.metrics}
    if record.per_class:
        values[PER_CLASS] = dict(record.per_class)
    return as_bytes(values)


def read_metrics(folder: Path) -> pd.DataFrame:
    """A frame of ``folder/metrics.jsonl`` with a row for each round.

    Class accuracies become columns ``global/per_class_accuracy.<class>``. A value that was not
    measured in a round, or was not finite, is NaN.
    """
    return as_frame((folder / FILE_NAME).read_bytes())


def as_frame(lines: bytes) -> pd.DataFrame:
    """The frame of ``read_metrics``, for these ``lines`` of a ``metrics.jsonl``."""
    import pandas as pd  # slow to import, and the command line needs no frame

    rows = [json.loads(line, object_hook=_null_to_nan) for line in lines.splitlines()]
    return pd.json_normalize(rows)


def parse_records(lines: bytes) -> list[Record]:
    """The records in ``lines`` of a ``metrics.jsonl``, without figures."""
    records = []
    for line in lines.splitlines():
        metrics = json.loads(line, object_hook=_null_to_nan)
        round, per_class = metrics.pop("round"), metrics.pop(PER_CLASS, {})
        records.append(Record(round, metrics, per_class))
    return records


def parse_metrics(lines: bytes) -> list[dict[str, float]]:
    """The metrics in ``lines`` of a ``metrics.jsonl``, without class accuracies."""
    rounds = []
    for line in lines.splitlines():
        # Class accuracies make up most of a line and are slow to decode. They are at the end.
        own, _, per_class = line.partition(_BEFORE_CLASSES)
        text = own + b"}" if per_class else line
        metrics = json.loads(text, object_hook=_null_to_nan if b"null" in text else None)
        del metrics["round"]
        rounds.append(metrics)
    return rounds


def as_bytes(value: Any, indent: int | None = None) -> bytes:
    """Encode as valid JSON with a final line break: NaN and infinities become null."""
    text = json.dumps(_nan_to_null(value), indent=indent, allow_nan=False, ensure_ascii=False)
    # The name of a class may be no valid UTF-8; ``ensure_ascii`` escapes its invalid bytes.
    return f"{text}\n".encode(errors="backslashreplace")


def _nan_to_null(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _nan_to_null(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_nan_to_null(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _null_to_nan(values: dict[str, Any]) -> dict[str, Any]:
    return {key: math.nan if value is None else value for key, value in values.items()}
