"""How clients and server are coordinated."""

from types import MappingProxyType

from fedexp.measures.after_round import AfterRound
from fedexp.measures.measure import Measure, Measured


class Coordination(Measure):
    """Staleness and clients in flight; nothing in synchronous rounds.

    ``coordination/staleness``: the number of server steps since a client received its model, mean
    over the updates that arrived. ``coordination/in_flight``: the number of clients that are
    training or sending at the time of the server step.
    """

    directions = MappingProxyType({"coordination/staleness": "lower"})

    def __call__(self, after: AfterRound) -> Measured:
        """``coordination/*`` of the round."""
        return Measured(dict(after.exchange.coordination))
