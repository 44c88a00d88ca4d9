"""Bulyan: Krum selects updates, then each coordinate is the mean of the values near the median."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated

from pydantic import Field
from torch import Tensor

from fedexp.aggregators.coordinatewise import Coordinatewise, mean_around_median
from fedexp.aggregators.krum import krum_scores, squared_distances
from fedexp.aggregators.robust import Tolerance
from fedexp.core.messages import PartUpdate, Tensors


class Bulyan(Coordinatewise):
    """Bulyan over Krum (El Mhamdi, Guerraoui and Rouault, ICML 2018, Section 4).

    K updates arrive, and f of them are assumed to be Byzantine. Krum selects the update with the
    lowest score, then scores the remaining updates again, and so on, until $theta = K - 2f$ updates
    are selected. For each coordinate of the next weights, the theta selected updates give theta
    values. The coordinate is the mean of the $beta = theta - 2f$ values closest to their median.
    For an even theta the median is the lower of the two middle values. If two values are equally
    close, the smaller is chosen first. All updates have the same weight; a client that was drawn
    twice counts twice.

    Later code of the authors has another rule: it selects $K - 2f - 2$ times, and each selection is
    the mean of several updates (multi-Krum).

    The rule needs $K >= 4f + 3$; ``Tolerance`` says what happens if K is too small.

    Args:
        byzantine: the assumed share of Byzantine clients among the planned updates of a round. f is
            this number of updates, rounded down (``Tolerance``).
    """

    def __init__(self, byzantine: Annotated[float, Field(gt=0, lt=0.25)]) -> None:
        super().__init__(Tolerance(f"aggregator.byzantine={byzantine:g}", 4, 3, byzantine))
        self._averaged = 0

    def combine(self, updates: Sequence[PartUpdate], current: Tensors) -> Tensors:
        """For each coordinate, the mean of the selected updates' values closest to the median."""
        drawn = [replace(u, draws=1) for u in updates for _ in range(u.draws)]
        assumed = self.tolerance.among(len(drawn))
        chosen = selected(squared_distances(drawn, current), assumed)
        self._averaged = len(chosen) - 2 * assumed
        return super().combine([drawn[index] for index in chosen], current)

    def statistic(self, values: Tensor) -> Tensor:
        """The mean of the beta values closest to the median.

        beta is K - 4f for K updates of which f are assumed to be Byzantine.
        """
        return mean_around_median(values, self._averaged)


def selected(squares: Tensor, byzantine_clients: int) -> list[int]:
    """Select K - 2f updates and return their indices in increasing order.

    The first selected update has the lowest Krum score. The next one has the lowest score among the
    remaining updates, and so on.

    Args:
        squares: [K, K] squared distances between the K updates.
        byzantine_clients: f, the assumed number of Byzantine clients.
    """
    rest, chosen = list(range(len(squares))), list[int]()
    for _ in range(len(squares) - 2 * byzantine_clients):
        scores = krum_scores(squares[rest][:, rest], byzantine_clients)
        chosen.append(rest.pop(int(scores.argmin())))
    return sorted(chosen)
