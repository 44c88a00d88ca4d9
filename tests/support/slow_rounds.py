"""A measure that measures nothing and takes time, so that something can happen to a run."""

import time

from pydantic import PositiveFloat

from fedexp.measures.after_round import AfterRound
from fedexp.measures.measure import Measure, Measured


class SlowRounds(Measure):
    """Each round takes ``seconds`` longer."""

    def __init__(self, seconds: PositiveFloat) -> None:
        self._seconds = seconds

    def __call__(self, after: AfterRound) -> Measured:
        time.sleep(self._seconds)
        return Measured()
