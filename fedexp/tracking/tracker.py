"""The contract of a tracker, which records the results of each round.

A tracker is an entry of ``tracking.trackers`` in the config. To add your own tracker, write a class
that can be imported, and name the class: ``+tracking.trackers.csv._target_=my_package.Csv``::

    class Csv(Tracker):
        def __init__(self, run: RunInfo, separator: str = ",") -> None:
            self._file = (run.folder / "accuracy.csv").open("a")
            self._separator = separator

        def log(self, record: Record) -> None:
            accuracy = record.metrics.get("global/accuracy")
            print(record.round, accuracy, sep=self._separator, file=self._file, flush=True)

        def finish(self, summary: Mapping[str, Any] | None) -> None:
            self._file.close()

The constructor gets ``run``. Its other arguments are keys of the config entry and are checked
against their annotations. An error in the constructor stops the run before the first round. A later
error does not stop training: one warning reports the error, and the tracker gets no more records.
Draw figures within ``failed_figures.leaving_out``: if a figure cannot be drawn, the tracker then
goes on without this figure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Record:
    """The results of one round.

    Attributes:
        round: 1 to T, or 0 for results before training, such as the heatmap of the partition.
        metrics: name -> value, for example ``global/accuracy``; unmeasured metrics are absent.
        per_class: class name -> accuracy of the global model; empty when not measured.
        figures: name -> figure, for example ``heatmap/partition``.
        tables: name -> table, for example ``clients``: column name -> values.
        logs: name -> table, as in ``tables``; logs are written only to files.
    """

    round: int
    metrics: Mapping[str, float] = field(default_factory=dict)
    per_class: Mapping[str, float] = field(default_factory=dict)
    figures: Mapping[str, Figure] = field(default_factory=dict)
    tables: Mapping[str, Mapping[str, Sequence[Any]]] = field(default_factory=dict)
    logs: Mapping[str, Mapping[str, Sequence[Any]]] = field(default_factory=dict)


@dataclass(frozen=True)
class RunInfo:
    """The facts about a run that the constructor of a tracker gets.

    Attributes:
        folder: the run's folder; it exists.
        rounds: T, the number of rounds.
        config: the config of the run as a nested dict.
        choices: config group -> chosen option, for example ``{"algorithm": "fedavg"}``.
        overrides: the overrides on the command line.
        sweep: the name of the run's sweep; None outside a sweep.
        run_id: eight hexadecimal digits that stay the same when the run is resumed, or None.
        resumed: whether the run was started before.
        headlines: headline -> ``higher`` or ``lower``: which values are better.
        past: the earlier rounds of a resumed run, in order, without figures, tables and logs.
        origins: key of ``tracking.wandb`` -> where its value comes from: ``command line``,
            ``preset``, the name of an environment variable, or ``default``.
    """

    folder: Path
    rounds: int = 0
    config: Mapping[str, Any] = field(default_factory=dict)
    choices: Mapping[str, str | None] = field(default_factory=dict)
    overrides: Sequence[str] = ()
    sweep: str | None = None
    run_id: str | None = None
    resumed: bool = False
    headlines: Mapping[str, str] = field(default_factory=dict)
    past: Sequence[Record] = ()
    origins: Mapping[str, str] = field(default_factory=dict)

    @property
    def rounds_done(self) -> int:
        """The number of rounds that a resumed run has already done; 0 in a new run."""
        return self.past[-1].round if self.past else 0


class Tracker:
    """Records results: ``log`` is called after each round, ``finish`` at the end of the run.

    This base class does nothing.

    Attributes:
        essential: whether an error in ``log`` or ``finish`` stops the run.
        closes_round: whether this tracker gets each record after all other trackers. For W&B's
            tracker this is True, so that values that another tracker logs to ``wandb.run`` at
            ``step=record.round`` belong to the same row.
    """

    essential: ClassVar[bool] = False
    closes_round: bool = False

    def log(self, record: Record) -> None:
        """Store the results of one round. Training waits until this method returns."""

    def finish(self, summary: Mapping[str, Any] | None) -> None:
        """Called at the end with the content of ``summary.json``; None if the run failed."""


class Trackers(Tracker):
    """A tracker that passes everything to several trackers."""

    def __init__(self, trackers: Iterable[Tracker]) -> None:
        self.trackers = list(trackers)

    def log(self, record: Record) -> None:
        """Pass the record to every tracker, in order; trackers that close the round come last."""
        for tracker in sorted(self.trackers, key=lambda each: each.closes_round):
            tracker.log(record)

    def finish(self, summary: Mapping[str, Any] | None) -> None:
        """Finish every tracker, the last one first."""
        for tracker in reversed(self.trackers):
            tracker.finish(summary)
