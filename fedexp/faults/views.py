"""Modified views of a client's data: flipped labels and fewer steps. No sample is copied."""

from copy import copy
from dataclasses import dataclass, replace

from fedexp.core.last_batch import KEEP, LastBatch
from fedexp.data.batches import LocalBatches
from fedexp.data.federated import ClientData, FederatedData
from fedexp.rounding import rounded_down


class LabelFlip:
    """Gives clients the labels C - 1 - y instead of y, where C is the number of classes.

    The labels of the whole population are flipped at the first call and then reused.
    """

    _original: FederatedData | None = None
    _flipped: FederatedData

    def __call__(self, data: ClientData) -> ClientData:
        """Return a view of ``data`` with flipped labels and class counts."""
        if self._original is not data.population:
            self._original, self._flipped = data.population, _flipped(data.population)
        return replace(data, class_counts=data.class_counts.flip(0), population=self._flipped)


def _flipped(data: FederatedData) -> FederatedData:
    flipped = copy(data)
    flipped.train = copy(data.train)
    flipped.train.labels = len(data.description.classes) - 1 - data.train.labels
    return flipped


@dataclass(frozen=True)
class Straggler(ClientData):
    """A straggler's data: an epoch has only the share ``work`` of its steps, at least one step.

    With ``local.steps`` the client takes the share ``work`` of these steps.
    """

    work: float

    def steps(self, planned: int) -> int:
        """The share ``work`` of the planned steps, rounded down, at least one step."""
        return max(1, rounded_down(self.work, planned))

    def local_batches(self, round: int, batch_size: int, last: LastBatch = KEEP) -> LocalBatches:
        """The first batches of every epoch: the share ``work``, rounded down, at least one."""
        batches = super().local_batches(round, batch_size, last)
        del batches.lengths[max(1, rounded_down(self.work, len(batches))) :]
        return batches
