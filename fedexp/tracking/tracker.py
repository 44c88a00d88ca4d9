"""The contract of a tracker.

A tracker is an entry of ``tracking.trackers`` in the config. To add your own, write a class that
can be imported and name it: ``+tracking.trackers.csv._target_=my_package.Csv``::

    class Csv(Tracker):
        def __init__(self, run: RunInfo, separator: str = ",") -> None:
            self._file = (run.folder / "accuracy.csv").open("a")
            self._separator = separator

        def log(self, record: Record) -> None:
            accuracy = record.metrics.get("global/accuracy")
            print(record.round, accuracy, sep=self._separator, file=self._file, flush=True)

        def finish(self, summary: Mapping[str, Any] | None) -> None:
            self._file.close()

The constructor gets ``run``. Its other arguments are keys of the entry and are checked against
their annotations. An error in the constructor stops the run before the first round. A later error
does not stop training: it is reported in one warning, and the tracker gets no more records. A
tracker that draws figures does so within ``failed_figures.leaving_out``: a figure that cannot be
drawn is then left out, and the tracker goes on.
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
        logs: like ``tables``, but written to files only.
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
        rounds: T.
        config: the whole experiment as a plain nested dict.
        choices: config group -> chosen option, for example ``{"algorithm": "fedavg"}``.
        overrides: the overrides on the command line.
        sweep: the name of the run's sweep; None outside a sweep.
        run_id: eight hexadecimal digits, the same each time this run is resumed; None if unknown.
        resumed: whether the run was started before.
        headlines: headline metric -> the better direction, ``higher`` or ``lower``.
        past: the earlier rounds of a resumed run, in order, without figures.
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

    @property
    def rounds_done(self) -> int:
        """The number of rounds that a resumed run has already done; 0 in a new run."""
        return self.past[-1].round if self.past else 0


class Tracker:
    """Gets one ``log`` a round and one ``finish``; this base class does nothing.

    Attributes:
        essential: whether an error in ``log`` or ``finish`` stops the run.
        closes_round: whether this tracker logs a record after all other trackers. W&B's tracker
            does so: values that another tracker logs to ``wandb.run`` at ``step=record.round``
            then belong to the same row.
    """

    essential: ClassVar[bool] = False
    closes_round: bool = False

    def log(self, record: Record) -> None:
        """Store the results of one round. Training waits until this method returns."""

    def finish(self, summary: Mapping[str, Any] | None) -> None:
        """Called at the end, with the content of ``summary.json``, or None if the run failed."""


class Trackers(Tracker):
    """Several trackers as one."""

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
