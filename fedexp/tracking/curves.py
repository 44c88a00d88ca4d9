"""The learning curves of a single run."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fedexp.drawing.data_figure import save_numbers, save_picture
from fedexp.drawing.panels import name_axes, panels
from fedexp.drawing.style import MOST_LINES, line_style, whole_numbers
from fedexp.tracking.failed_figures import leaving_out
from fedexp.tracking.tracker import Record, RunInfo, Tracker

_PANELS = {"accuracy": "higher", "loss": "lower"}
"""Word -> better direction. Each word has a panel, with the headlines whose names contain it."""


class Curves(Tracker):
    """Draws ``figures/curves.png`` after the last round: accuracies and losses over the rounds.

    The curves are the headlines with ``accuracy`` or ``loss`` in the name that were measured at
    least twice; a panel has at most ten. ``figures/curves.csv`` has the numbers; if a round did not
    measure a metric, the cell is empty.
    """

    def __init__(self, run: RunInfo) -> None:
        self._path = run.folder / "figures" / "curves"
        self._headlines = run.headlines
        self._history = [record for record in run.past if record.metrics]

    def log(self, record: Record) -> None:
        """Keep the round's metrics for the curves."""
        if record.metrics:
            self._history.append(Record(record.round, record.metrics))

    def finish(self, summary: Mapping[str, Any] | None) -> None:
        """Draw the curves, unless the run failed or measured no such headline twice."""
        found = {word: self._measured(word, better) for word, better in _PANELS.items()}
        shown = {word: names[:MOST_LINES] for word, names in found.items() if names}
        if summary is None or not shown:
            return
        columns = {"round": np.array([record.round for record in self._history])}
        columns |= {name: self._values(name) for names in shown.values() for name in names}
        figure, all_axes = panels(len(shown))
        with leaving_out("curves", figure):
            for axes, (word, names) in zip(all_axes, shown.items(), strict=True):
                for number, name in enumerate(names):
                    known, style = ~np.isnan(columns[name]), line_style(number) | {"marker": ""}
                    axes.plot(columns["round"][known], columns[name][known], label=name, **style)
                whole_numbers(axes.xaxis)
                name_axes(axes, "round", word)
                axes.legend(fontsize=8)
            self._path.parent.mkdir(parents=True, exist_ok=True)
            save_picture(self._path.with_suffix(".png"), figure)
            save_numbers(self._path, columns)

    def _measured(self, word: str, better: str) -> Sequence[str]:
        """The headlines with this ``word`` and direction that were measured at least twice."""
        return [
            name
            for name, direction in self._headlines.items()
            if word in name
            and direction == better
            and sum(name in record.metrics for record in self._history) > 1
        ]

    def _values(self, name: str) -> Any:
        """The value of a metric in each round, [rounds]; NaN if the round did not measure it."""
        return np.array([record.metrics.get(name, math.nan) for record in self._history])
