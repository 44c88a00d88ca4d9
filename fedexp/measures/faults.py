"""Updates that were left out, and injected faults."""

from fedexp.measures.after_round import AfterRound
from fedexp.measures.measure import Measure, Measured


class Faults(Measure):
    """``clients/quarantined`` updates that were not finite, and the counts of injected faults."""

    def __call__(self, after: AfterRound) -> Measured:
        """The counts of this round's cohort."""
        injected = after.resources.faults.metrics(after.round, after.exchange.cohort)
        return Measured({"clients/quarantined": len(after.quarantined), **injected})
