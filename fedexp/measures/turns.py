"""The log of turns: what each client's device did in each round."""

from dataclasses import fields

from fedexp.measures.after_round import AfterRound
from fedexp.measures.measure import Measure, Measured
from fedexp.system.turns import TurnRecord


class Turns(Measure):
    """The log ``turns``: a row for each client of each round, with its work and its bytes.

    The columns are the attributes of ``TurnRecord``. The log costs no training: it holds numbers
    that the round has anyway, and with them and devices ``round_time`` gives simulated time.
    """

    def __call__(self, after: AfterRound) -> Measured:
        """The rows of the round."""
        names = [field.name for field in fields(TurnRecord)]
        turns = after.exchange.turns
        return Measured(logs={"turns": {n: [getattr(each, n) for each in turns] for n in names}})
