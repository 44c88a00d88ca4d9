"""Updates that were left out, and injected faults."""

from types import MappingProxyType

from fedexp.measures.after_round import AfterRound
from fedexp.measures.measure import Measure, Measured


class Faults(Measure):
    """The counts of refused updates and merged models, and of injected faults.

    ``clients/quarantined``: updates that were not finite. ``server/quarantined``: 1 if the merged
    model was not finite.
    """

    directions = MappingProxyType({"clients/*": "lower", "server/quarantined": "lower"})

    def __call__(self, after: AfterRound) -> Measured:
        """The counts of this round's cohort."""
        injected = after.resources.faults.metrics(after.round, after.exchange.cohort)
        refused = {"server/quarantined": int(after.server.refused)}
        return Measured({"clients/quarantined": len(after.quarantined), **refused, **injected})
