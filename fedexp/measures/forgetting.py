"""Forgetting: how far the accuracy of each class has dropped since its best round."""

from collections.abc import Mapping
from math import fsum
from types import MappingProxyType
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from pydantic import PositiveInt

from fedexp.config.compatibility.traits import Need
from fedexp.drawing.data_figure import DataFigure
from fedexp.drawing.style import BAR, open_frame
from fedexp.drawing.texts import legible
from fedexp.measures.measure import AfterRound, Measure, Measured

_MOST_BARS = 40
"""Largest number of classes in the picture; the file beside the picture has all classes."""


class Forgetting(Measure):
    """``forgetting/mean``: the mean drop of a class's accuracy since the best round of the class.

    The drop of a class is the global model's highest accuracy on it in earlier measured rounds
    minus the accuracy now; a negative drop counts as 0. ``forgetting/mean`` and ``forgetting/max``
    are the mean and the maximum over classes. The first measured round has no metrics. After the
    last round, the figure ``forgetting`` shows the drop of each class.

    Args:
        every: rounds between measurements; the last round is always measured.
    """

    headlines = MappingProxyType({"forgetting/mean": "lower"})
    directions = MappingProxyType({"forgetting/*": "lower"})
    needs = frozenset({Need.GLOBAL_MODEL, Need.CLASS_LABELS, Need.TEST_CLASSES})

    def __init__(self, every: PositiveInt) -> None:
        self.every = every
        self._best: dict[str, float] = {}

    def __call__(self, after: AfterRound) -> Measured:
        """The metrics, after the last round also the figure."""
        present = after.class_accuracies()
        drops = {c: max(0.0, self._best[c] - now) for c, now in present.items() if c in self._best}
        self._best |= {c: max(now, self._best.get(c, 0.0)) for c, now in present.items()}
        if not drops:
            return Measured()
        metrics = {
            "forgetting/mean": fsum(drops.values()) / len(drops),
            "forgetting/max": max(drops.values()),
        }
        return Measured(metrics, figures={"forgetting": _bars(drops)} if after.is_last else {})

    def state_dict(self) -> dict[str, Any]:
        """Class -> its highest accuracy so far."""
        return dict(self._best)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Inverse of ``state_dict``."""
        self._best = dict(state)


def _bars(drops: Mapping[str, float]) -> Figure:
    """A bar chart of the ``_MOST_BARS`` largest drops of classes, the largest drop on top."""
    order = sorted(drops, key=lambda name: -drops[name])
    values = np.array([drops[name] for name in order])
    shown = order[:_MOST_BARS]
    figure = DataFigure({"class": order, "drop": values}, (6.4, 0.22 * len(shown) + 1.4))
    axes = figure.subplots()
    axes.barh(range(len(shown)), values[: len(shown)], color=BAR)
    axes.set_yticks(range(len(shown)), list(map(legible, shown)))
    axes.set_ylim(len(shown) - 0.4, -0.6)
    axes.set_xlim(0, max(1.05 * values[0], 0.01))
    open_frame(axes)
    axes.set(xlabel="drop in accuracy from the class's best round", ylabel="class")
    some = f" ({len(shown)} of {len(order)} classes)" if len(shown) < len(order) else ""
    axes.set_title(f"Forgetting of the global model{some}")
    return figure
