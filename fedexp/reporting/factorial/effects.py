"""Main effects and interactions of a factorial experiment, with intervals and corrected tests.

The model of one cell is value = mean + b_seed + effects + residual. The seed's b is a random
effect: runs with the same seed share data, partition and batches. Every combination has run with
every seed, so the estimates of this mixed model have a closed form.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pandas as pd
from scipy.special import stdtrit

from fedexp.reporting.factorial.design import Design, Effect
from fedexp.reporting.families import LEVEL, Floats, corrected
from fedexp.reporting.interval import CONFIDENCE, POWER, t_test

_MOST_SEEDS = 1000


@dataclass(frozen=True)
class Fit:
    """The model of one cell.

    Attributes:
        design: the design.
        values: [n, m] value of each of n seeds in each of the design's m combinations.
        smallest: the smallest effect of interest.
    """

    design: Design
    values: Floats
    smallest: float

    @property
    def seeds(self) -> int:
        """n, the number of seeds."""
        return len(self.values)

    @property
    def freedom(self) -> int:
        """The degrees of freedom of the residuals: n m values less mean, seeds and effects."""
        return int(self.values.size) - self.seeds - len(self.design.effects)

    @cached_property
    def columns(self) -> Floats:
        """[m, k] sign of each effect in each combination; the columns are orthogonal."""
        return np.array([self.design.column(each) for each in self.design.effects], float).T

    @cached_property
    def estimates(self) -> Floats:
        """[k] mean of the runs in which an effect's sign is high, minus mean of the others."""
        return self._estimates(self.values.mean(axis=0))

    @cached_property
    def deviation(self) -> float:
        """The standard deviation of the residuals; NaN without degrees of freedom."""
        if not self.freedom:
            return math.nan
        fitted = self.values.mean(axis=1, keepdims=True) + self.columns @ self.estimates / 2
        return math.sqrt(float(((self.values - fitted) ** 2).sum()) / self.freedom)

    @property
    def seed_deviation(self) -> float:
        """The standard deviation of the seeds' random effect; NaN for one seed."""
        if self.seeds < 2 or not self.freedom:
            return math.nan
        between = float(self.values.mean(axis=1).var(ddof=1))
        return math.sqrt(max(0.0, between - self.deviation**2 / self.values.shape[1]))

    @property
    def error(self) -> float:
        """The standard error of an effect."""
        return self._error(self.seeds)

    @property
    def table(self) -> pd.DataFrame:
        """A row for each effect, main effects first.

        Columns: ``effect`` (such as ``head x loss``), ``estimate``, ``half_width`` (of the 95 %
        interval), ``p_value``, ``p_corrected`` (Holm's over the main effects, Benjamini and
        Hochberg's over the interactions), ``p_by_seed`` (a t-test over the seeds' own estimates,
        which needs no common variance), and ``verdict``.
        """
        half, p_values = self._tested(self.estimates, self.error)
        main = len(self.design.factors)
        adjusted = [
            *corrected(p_values[:main].tolist())[1],
            *corrected(p_values[main:].tolist())[0],
        ]
        return pd.DataFrame(
            {
                "effect": [name(each) for each in self.design.effects],
                "estimate": self.estimates,
                "half_width": half,
                "p_value": p_values,
                "p_corrected": adjusted,
                "p_by_seed": self._by_seed(np.eye(len(self.estimates))),
                "verdict": [
                    verdict(estimate, half, p, self.smallest)
                    for estimate, p in zip(self.estimates, adjusted, strict=True)
                ],
            }
        )

    @property
    def alone(self) -> pd.DataFrame:
        """The effect of each factor if all others are low, which the model predicts.

        It is the main effect minus the factor's interactions. Columns: ``factor``, ``estimate``,
        ``half_width``, ``p_value``, ``p_corrected`` (Holm's), ``p_by_seed`` (as in ``table``).
        """
        factors = list(self.design.factors)
        contrasts = np.array(
            [
                [(f in each) * (1.0 if each == (f,) else -1.0) for each in self.design.effects]
                for f in factors
            ]
        )
        estimates = contrasts @ self.estimates
        half, p_values = self._tested(estimates, self.error * math.sqrt(len(factors)))
        return pd.DataFrame(
            {
                "factor": factors,
                "estimate": estimates,
                "half_width": half,
                "p_value": p_values,
                "p_corrected": corrected(p_values.tolist())[1],
                "p_by_seed": self._by_seed(contrasts),
            }
        )

    @property
    def smallest_shown(self) -> float:
        """The smallest main effect that is shown with a probability of 80 %."""
        return self._shown(self.seeds)

    @property
    def seeds_needed(self) -> int | None:
        """The number of seeds that show the smallest effect of interest; None if it is too large.

        An effect is shown if it passes the first step of Holm's correction over the main effects,
        with a probability of 80 %.
        """
        counts = range(2, _MOST_SEEDS)
        return next((n for n in counts if self._shown(n) <= self.smallest), None)

    def predicted(self, factors: Effect, signs: tuple[int, ...]) -> float:
        """The model's value at these levels of two factors, averaged over the other factors."""
        level, value = dict(zip(factors, signs, strict=True)), float(self.values.mean())
        for effect, estimate in zip(self.design.effects, self.estimates, strict=True):
            if set(effect) <= set(factors):
                value += math.prod(level[each] for each in effect) * estimate / 2
        return value

    def _estimates(self, means: Floats) -> Floats:
        found: Floats = 2 * self.columns.T @ means / len(self.columns)
        return found

    def _by_seed(self, contrasts: Floats) -> Floats:
        """The p-value of each contrast over the estimates of the single seeds; NaN for one seed.

        Args:
            contrasts: [c, k] weights of the k effects.
        """
        if self.seeds < 2:
            return np.full(len(contrasts), math.nan)
        each = np.array([contrasts @ self._estimates(row) for row in self.values])
        errors = each.std(axis=0, ddof=1) / math.sqrt(self.seeds)
        return _p_values(each.mean(axis=0), errors, self.seeds - 1)

    def _tested(self, estimates: Floats, error: float) -> tuple[float, Floats]:
        """Half of the width of the intervals, and the p-values."""
        half = _quantile((1 + CONFIDENCE) / 2, self.freedom) * error
        return half, _p_values(estimates, np.full(len(estimates), error), self.freedom)

    def _error(self, seeds: int) -> float:
        return 2 * self.deviation / math.sqrt(seeds * len(self.columns))

    def _shown(self, seeds: int) -> float:
        """``smallest_shown`` with another number of seeds and the same deviation."""
        freedom = seeds * len(self.columns) - seeds - len(self.design.effects)
        first = 1 - LEVEL / 2 / len(self.design.factors)
        critical = _quantile(first, freedom) + _quantile(POWER, freedom)
        return critical * self._error(seeds)


def name(effect: Effect) -> str:
    """An effect in words, such as ``head x loss``."""
    return " x ".join(effect)


def verdict(estimate: float, half_width: float, p_corrected: float, smallest: float) -> str:
    """What the interval and the corrected test say of an effect.

    Args:
        estimate: the effect.
        half_width: half of the width of its interval; NaN if nothing was tested.
        p_corrected: the p-value after the correction of its family.
        smallest: the smallest effect of interest.
    """
    if math.isnan(half_width):
        return "not tested"
    shown, size = p_corrected <= LEVEL, abs(estimate)
    if shown and size - half_width > smallest:
        return f"larger than {smallest:g}"
    if size + half_width < smallest:
        return f"smaller than {smallest:g}"
    return "shown, size open" if shown else "not decided"


def _quantile(probability: float, freedom: int) -> float:
    return float(stdtrit(freedom, probability)) if freedom > 0 else math.nan


def _p_values(estimates: Floats, errors: Floats, freedom: int) -> Floats:
    """Two-sided p-values; NaN without degrees of freedom."""
    return np.array([t_test(*each, freedom) for each in zip(estimates, errors, strict=True)])
