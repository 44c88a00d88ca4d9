"""Bulyan: Krum selects updates, then each coordinate is the mean of the values near the median."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated

from pydantic import Field
from torch import Tensor

from fedexp.aggregators.coordinatewise import Coordinatewise, mean_around_median
from fedexp.aggregators.gathered import rounded_down
from fedexp.aggregators.krum import krum_scores, squared_distances
from fedexp.core.messages import PartUpdate, Tensors
from fedexp.core.part import Setting
from fedexp.errors import InputError


class Bulyan(Coordinatewise):
    """Bulyan over Krum (El Mhamdi, Guerraoui and Rouault, ICML 2018, Section 4).

    K updates arrive, and f of them are assumed to be Byzantine. Krum selects the update with the
    lowest score, then scores the remaining updates again, and so on, until theta = K - 2f updates
    are selected. For each coordinate of the next weights, the theta selected updates give theta
    values. The coordinate is the mean of the beta = theta - 2f values closest to their median. For
    an even theta the median is the lower of the two middle values. If two values are equally close,
    the smaller is chosen first. All updates have the same weight; a client that was drawn twice
    counts twice. With f = 0 the result is the mean.

    Later code of the authors has another rule: it selects K - 2f - 2 times, and each selection is
    the mean of several updates (multi-Krum).

    The rule needs K >= 4f + 3. If clients drop out and too few updates arrive for f, f becomes the
    largest number that satisfies this condition.

    Args:
        byzantine: f / K, the assumed share of Byzantine clients; f is rounded down.
    """

    def __init__(self, byzantine: Annotated[float, Field(ge=0, lt=0.25)]) -> None:
        super().__init__()
        self.byzantine = byzantine
        self._averaged = 0

    def setup(self, setting: Setting) -> None:
        """Raise InputError if the cohort is too small for the assumed Byzantine clients."""
        cohort = min(setting.clients_per_round, int((setting.client_sizes > 0).sum()))
        assumed = rounded_down(self.byzantine, cohort)
        if assumed > _largest(cohort):
            raise InputError(
                f"aggregator.byzantine={self.byzantine}: {assumed} Byzantine clients in a cohort "
                f"of {cohort} need at least 4 * {assumed} + 3 = {4 * assumed + 3} clients; "
                f"use a smaller share, or more clients.per_round"
            )

    def combine(self, updates: Sequence[PartUpdate], current: Tensors) -> Tensors:
        """For each coordinate, the mean of the selected updates' values closest to the median."""
        drawn = [replace(u, draws=1) for u in updates for _ in range(u.draws)]
        assumed = min(rounded_down(self.byzantine, len(drawn)), _largest(len(drawn)))
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


def _largest(cohort: int) -> int:
    """The largest number f of Byzantine clients that Bulyan allows among K clients.

    This is the largest f >= 0 with 4f + 3 <= K. If K < 3, it is 0.
    """
    return max(0, (cohort - 3) // 4)
