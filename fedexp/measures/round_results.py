"""The results of measures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from fedexp.core.messages import Message

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Table = Mapping[str, Sequence[Any]]
"""Column name -> values; all columns have the same length."""


@dataclass(frozen=True)
class Measured:
    """The results of one or several measures after one round.

    Attributes:
        metrics: name -> value, for example ``global/accuracy``; unmeasured metrics are absent.
        per_class: class name -> accuracy of the global model.
        tables: name -> table, for example ``clients``; written to ``<name>.csv``, with ``_`` in
            place of each ``/``.
        figures: name -> figure, for example ``heatmap/partition``.
        best_model: the most accurate global model so far, if the method needs this model.
        logs: name -> table, for example ``turns``, with rows for every round. Like ``tables``, logs
            are written to ``<name>.csv``, but not to W&B, which would store one file per round.
    """

    metrics: Mapping[str, float] = field(default_factory=dict)
    per_class: Mapping[str, float] = field(default_factory=dict)
    tables: Mapping[str, Table] = field(default_factory=dict)
    figures: Mapping[str, Figure] = field(default_factory=dict)
    best_model: Message | None = None
    logs: Mapping[str, Table] = field(default_factory=dict)

    def __or__(self, other: Measured) -> Measured:
        """Both results together; if a name is in both, the value of ``other`` is taken."""
        return Measured(
            {**self.metrics, **other.metrics},
            {**self.per_class, **other.per_class},
            {**self.tables, **other.tables},
            {**self.figures, **other.figures},
            other.best_model or self.best_model,
            {**self.logs, **other.logs},
        )
