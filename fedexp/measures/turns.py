"""A log with the work of each client in each round."""

from dataclasses import fields

from fedexp.measures.measure import AfterRound, Measure, Measured
from fedexp.system.turns import TurnRecord


class Turns(Measure):
    """The log ``turns``: the work and the bytes of the clients in each round.

    The columns are the attributes of ``TurnRecord``, which says when a client has two rows. From
    this log and the speed of the clients' devices, ``round_time`` computes simulated time. So the
    simulated time with other devices can be computed without training again.
    """

    def __call__(self, after: AfterRound) -> Measured:
        """The rows of this round."""
        names = [field.name for field in fields(TurnRecord)]
        turns = after.exchange.turns
        return Measured(logs={"turns": {n: [getattr(each, n) for each in turns] for n in names}})
