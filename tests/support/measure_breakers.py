"""Measures that break one rule of the contract of a measure each."""

import itertools
import math

from fedexp.core.messages import Update
from fedexp.core.reducible import Contribution
from fedexp.measures.after_round import AfterRound
from fedexp.measures.measure import Measure, Measured

_CALLS = itertools.count()


class WithoutKey(Measure):
    """Its draws come from a state that all runs of the process share."""

    def __call__(self, after: AfterRound) -> Measured:
        return Measured({"own/draw": float(next(_CALLS))})


class OtherTable(WithoutKey):
    """Its table comes from such a state."""

    def __call__(self, after: AfterRound) -> Measured:
        return Measured(tables={"own": {"draw": [next(_CALLS)]}})


class Meddling(Measure):
    """It changes the global model."""

    def __call__(self, after: AfterRound) -> Measured:
        for weight in after.server.weights.values():
            weight.mul_(0.9)
        return Measured()


class Forgetful(Measure):
    """Its state is in no checkpoint."""

    rounds = 0

    def __call__(self, after: AfterRound) -> Measured:
        self.rounds += 1
        return Measured({"own/rounds": float(self.rounds)})


class Alone(Measure):
    """It ignores the other processes."""

    samples = 0

    def observe(self, update: Update) -> None:
        self.samples += update.num_samples

    def contribution(self) -> Contribution:
        return Contribution(items=self.samples)

    def __call__(self, after: AfterRound) -> Measured:
        samples, self.samples = self.samples, 0
        return Measured({"own/samples": float(samples)})


class NeverMeasured(Measure):
    """It does not measure its headline."""

    headlines = {"own/score": "higher"}

    def __call__(self, after: AfterRound) -> Measured:
        return Measured()


class NotFinite(NeverMeasured):
    """It measures NaN where it should leave the headline out."""

    def __call__(self, after: AfterRound) -> Measured:
        return Measured({"own/score": math.nan if after.round == 1 else 0.5})


class OneSided(Alone):
    """It sends what it observed to the other processes, and takes nothing from them."""


class NoResult(Measure):
    """It returns nothing."""

    def __call__(self, after: AfterRound) -> Measured:
        return None  # type: ignore[return-value]
