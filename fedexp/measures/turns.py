"""The log of turns: what each client's device did in each round."""

from dataclasses import fields

from fedexp.measures.after_round import AfterRound
from fedexp.measures.measure import Measure, Measured
from fedexp.system.turns import TurnRecord


class Turns(Measure):
    """The log ``turns``: a row for each client of each round, with its work and its bytes.

    The columns are the attributes of ``TurnRecord``. The log holds numbers that a round counts
    anyway. From these numbers and the clients' devices ``round_time`` computes simulated time, so
    other devices need no new training.
    """

    def __call__(self, after: AfterRound) -> Measured:
        """The rows of the round."""
        names = [field.name for field in fields(TurnRecord)]
        turns = after.exchange.turns
        return Measured(logs={"turns": {n: [getattr(each, n) for each in turns] for n in names}})
