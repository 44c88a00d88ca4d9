"""Metrics of asynchronous coordination: staleness, and the number of clients at work."""

from types import MappingProxyType

from fedexp.measures.measure import AfterRound, Measure, Measured


class Coordination(Measure):
    """Staleness and the number of clients in flight, if clients and server work asynchronously.

    ``coordination/staleness`` is the number of server steps since the client of an update received
    its model, as a mean over the updates that arrived. ``coordination/in_flight`` is the number of
    clients that are training or sending at the time of the server step. In synchronous rounds
    nothing is measured.
    """

    directions = MappingProxyType({"coordination/staleness": "lower"})

    def __call__(self, after: AfterRound) -> Measured:
        """The metrics ``coordination/*`` of the round."""
        return Measured(dict(after.exchange.coordination))
