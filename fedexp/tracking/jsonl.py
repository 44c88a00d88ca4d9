"""``metrics.jsonl``: a run's metrics, with one line for each round; readable during the run."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
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

    The key ``global/per_class_accuracy`` has the accuracies of the classes, as
    ``{class: accuracy}``. For a record without metrics (round 0) nothing is written. When a run is
    resumed, the lines after its checkpoint are deleted, because these rounds are trained again.
    """

    essential = True

    def __init__(self, run: RunInfo) -> None:
        path = run.folder / FILE_NAME
        write_atomically(path, b"".join(map(line, run.past)))
        self._file = path.open("ab", buffering=0)

    def log(self, record: Record) -> None:
        """Write the round's line."""
        rest = line(record)
        while rest:  # on a full disk one call writes only a part, and the next call fails
            rest = rest[self._file.write(rest) :]

    def finish(self, summary: Mapping[str, Any] | None) -> None:
        """Close the file."""
        self._file.close()


def line(record: Record) -> bytes:
    """A round's record as a line of JSON; empty if the record has no metrics."""
    if not record.metrics:
        return b""
    values: dict[str, Any] = {"round": record.round, **record.metrics}
    if record.per_class:
        values[PER_CLASS] = dict(record.per_class)
    return as_bytes(values)


def as_frame(lines: bytes) -> pd.DataFrame:
    """A row for each round in ``lines``, the content of a ``metrics.jsonl``.

    The accuracy of each class becomes a column ``global/per_class_accuracy.<class>``. If a round
    did not measure a value, or if the value was not finite, the cell is NaN.
    """
    import pandas as pd  # slow to import; the command line needs no data frame

    rows = [json.loads(line, object_hook=_null_to_nan) for line in lines.splitlines()]
    return pd.json_normalize(rows)


def parse_records(lines: bytes) -> list[Record]:
    """The records in ``lines``, the content of a ``metrics.jsonl``; they have no figures."""
    records = []
    for line in lines.splitlines():
        metrics = json.loads(line, object_hook=_null_to_nan)
        round, per_class = metrics.pop("round"), metrics.pop(PER_CLASS, {})
        records.append(Record(round, metrics, per_class))
    return records


def parse_metrics(lines: bytes) -> list[dict[str, float]]:
    """Each round's metrics in ``lines``, the content of a ``metrics.jsonl``.

    The accuracies of the classes are left out.
    """
    rounds = []
    for line in lines.splitlines():
        # Cut off the class accuracies: they are most of a line, slow to decode, and at its end.
        own, _, per_class = line.partition(_BEFORE_CLASSES)
        text = own + b"}" if per_class else line
        metrics = json.loads(text, object_hook=_null_to_nan if b"null" in text else None)
        del metrics["round"]
        rounds.append(metrics)
    return rounds


def as_bytes(value: Any, indent: int | None = None) -> bytes:
    """The value as valid JSON with a final line break; NaN and infinities become null."""
    text = json.dumps(_nan_to_null(value), indent=indent, allow_nan=False, ensure_ascii=False)
    # The name of a class may have bytes that are not valid UTF-8; these bytes are escaped.
    return f"{text}\n".encode(errors="backslashreplace")


def _nan_to_null(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _nan_to_null(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_nan_to_null(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _null_to_nan(values: dict[str, Any]) -> dict[str, Any]:
    return {key: math.nan if value is None else value for key, value in values.items()}
