"""Fairness: how unequal the personal accuracies of the clients are."""

from types import MappingProxyType
from typing import Literal

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray
from pydantic import PositiveInt

from fedexp.drawing.data_figure import DataFigure
from fedexp.drawing.style import BAR, legend_above, open_frame, whole_numbers
from fedexp.measures.client_scores import PersonalMeasure
from fedexp.measures.measure import AfterRound, Measured
from fedexp.measures.scoring.accuracies import spread


class Fairness(PersonalMeasure):
    """How unequal the clients' personal accuracies are: Gini, variance, worst tenth.

    ``fairness/gini`` is the Gini coefficient: 0 if all accuracies are equal, and nearly 1 if only
    one client has an accuracy above 0. ``fairness/variance`` is the variance over clients.
    ``fairness/worst_decile`` is the mean over the worst tenth of the clients. Only clients whose
    personal model is scored count. After the last round, the figure ``fairness`` shows the
    distribution of the accuracies.

    Args:
        every: rounds between measurements; the last round is always measured.
        kind: kind of accuracy; see ``personal_accuracies``.
        of: the clients whose models are scored: all clients that have trained, or only the cohort.
        samples: number of test samples on which models are scored; None: the whole test split.
    """

    headlines = MappingProxyType(
        {"fairness/gini": "lower", "fairness/variance": "lower", "fairness/worst_decile": "higher"}
    )

    def __init__(
        self,
        every: PositiveInt,
        kind: Literal["uniform", "local", "test_split", "whole"],
        of: Literal["all", "cohort"],
        samples: PositiveInt | None,
    ) -> None:
        super().__init__(every, [kind], of, samples)
        self.kind = kind

    def __call__(self, after: AfterRound) -> Measured:
        """The metrics, after the last round also the figure; nothing if no client is scored."""
        scores = self.scores(after).values()
        found = [each.accuracies[self.kind] for each in scores if self.kind in each.accuracies]
        if not found:
            return Measured()
        accuracies = np.array(found)
        metrics = {
            "fairness/gini": gini(accuracies),
            "fairness/variance": float(accuracies.var()),
            "fairness/worst_decile": float(spread(found)["worst_decile"]),
        }
        if not after.is_last:
            return Measured(metrics)
        figure = _distribution(accuracies, metrics["fairness/worst_decile"], self.kind)
        return Measured(metrics, figures={"fairness": figure})


def gini(values: NDArray[np.float64]) -> float:
    """The Gini coefficient of the non-negative ``values`` [n], a measure of inequality.

    It is the mean absolute difference over all pairs of values, divided by twice the mean value. If
    all values are equal, it is 0; if only one value is not zero, it is (n - 1) / n.
    """
    total = values.sum()
    if not total:
        return 0.0
    size = len(values)
    ranks = 2 * np.arange(1, size + 1) - size - 1
    return float((ranks * np.sort(values)).sum() / (size * total))


def _distribution(accuracies: NDArray[np.float64], worst_decile: float, kind: str) -> Figure:
    """A histogram of the clients' accuracies, with lines at the mean and the ``worst_decile``."""
    figure = DataFigure({"accuracy": accuracies}, (6.4, 3.6))
    axes = figure.subplots()
    low = min(np.floor(accuracies.min() * 10) / 10, 0.9)  # at least a tenth wide
    high = max(np.ceil(accuracies.max() * 10) / 10, low + 0.1)
    bins = np.linspace(low, high, 21).tolist()
    axes.hist(accuracies, bins, color=BAR, edgecolor="white", linewidth=0.5)
    marks = {"mean": (accuracies.mean(), "--"), "worst tenth": (worst_decile, ":")}
    for name, (place, dashes) in marks.items():
        label = f"{name} {place:.3f}"
        axes.axvline(place, color="black", linestyle=dashes, linewidth=1.2, label=label)
    open_frame(axes)
    whole_numbers(axes.yaxis)
    legend_above(axes, ncols=2)
    axes.set(xlabel=f"personal accuracy ({kind})", ylabel="clients", xlim=(low, high))
    axes.set_title(f"{len(accuracies)} clients", loc="left")
    return figure
