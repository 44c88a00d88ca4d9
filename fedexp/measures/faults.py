"""The numbers of refused updates, refused models and injected faults."""

from types import MappingProxyType

from fedexp.measures.measure import AfterRound, Measure, Measured


class Faults(Measure):
    """The numbers of refused updates, refused models and injected faults.

    ``clients/quarantined`` is the number of updates that were left out because they had NaN or
    infinite values. ``server/quarantined`` is 1 if the merged model had such values, else 0.
    """

    directions = MappingProxyType({"clients/*": "lower", "server/quarantined": "lower"})

    def __call__(self, after: AfterRound) -> Measured:
        """The numbers of refusals and of faults in this round's cohort."""
        injected = after.resources.faults.metrics(after.round, after.exchange.in_time)
        refused = {"server/quarantined": int(after.server.refused)}
        return Measured({"clients/quarantined": len(after.quarantined), **refused, **injected})
