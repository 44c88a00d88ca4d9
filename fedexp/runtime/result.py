"""The results of a run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedexp.core.client import ClientModule
from fedexp.state.run_folder import objective
from fedexp.tracking.jsonl import as_frame

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class RunResult:
    """The results of a run.

    Attributes:
        folder: the run's folder, with all files.
        lines: the bytes of ``metrics.jsonl``: a JSON object for each round, one in each line.
        summary: the content of ``summary.json``.
        make_model: creates ``model``.
        stopped: why the run ended before the last round, such as ``limits.minutes=30``; None for a
            complete run.
    """

    folder: Path
    lines: bytes
    summary: dict[str, Any]
    make_model: Callable[[], ClientModule]
    stopped: str | None = None

    @cached_property
    def metrics(self) -> pd.DataFrame:
        """A row for each round and a column for each metric; NaN where it was not measured."""
        return as_frame(self.lines)

    @cached_property
    def model(self) -> ClientModule:
        """The final global model in eval mode; on the CPU if other processes trained it."""
        return self.make_model()

    def objective(self, metric: str) -> float:
        """The last value of the headline ``metric``, NaN if no round measured it."""
        return objective(self.summary, metric)
