"""A client's data with extra samples appended to its training batches."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import fields

import torch
from torch import Generator, Tensor

from fedexp.core.client_protocol import Batch
from fedexp.core.last_batch import KEEP, LastBatch
from fedexp.core.transfer import to_device
from fedexp.data.batches import LocalBatches
from fedexp.data.federated import ClientData


class AppendedBatches(LocalBatches):
    """A client's batches; extra samples are appended to each batch.

    In every epoch the appended samples are shuffled and spread evenly over the batches. Every epoch
    uses each appended sample exactly once, and the number of steps does not change. Appended
    samples are not augmented.

    Args:
        whole: the batches without appended samples.
        inputs: [m, *input_shape] float32, the m appended samples as inputs of the model.
        labels: [m] int64, the classes of the appended samples.
        order: draws the order of the appended samples.
    """

    def __init__(
        self, whole: LocalBatches, inputs: Tensor, labels: Tensor, order: Generator
    ) -> None:
        super().__init__(
            whole.samples, whole.index, whole.lengths, whole.augment, whole.order, whole.draws
        )
        self._whole, self._inputs, self._labels, self._order = whole, inputs, labels, order
        # Reading the number of own samples in a batch from the batch would wait for a GPU.
        self._own_of = defaultdict[int, set[int]](set)
        for length, more in zip(self.lengths, _spread(len(labels), len(self.lengths)), strict=True):
            self._own_of[length + more].add(length)

    @property
    def shares_samples(self) -> bool:
        """False: ``samples`` lacks the appended samples, which belong to this client only."""
        return False

    def chunks(self) -> Sequence[Tensor]:
        """Positions of each batch's samples; appended sample j is at position len(samples) + j."""
        chunks = self._whole.chunks()
        permutation = torch.randperm(len(self._labels), generator=self._order)
        places = len(self.samples) + to_device(permutation, self.index.device)
        appended = torch.split(places, _spread(len(places), len(chunks)))
        return [torch.cat(pair) for pair in zip(chunks, appended, strict=True)]

    def gather(self, index: Tensor) -> Batch:
        """The batch of the B samples at the positions ``index`` [B].

        Appended sample j has the position ``len(samples) + j``. In the batch the appended samples
        come last.
        """
        count = self._own_in(index)
        inputs, labels = super().gather(index[:count])
        appended = index[count:] - len(self.samples)
        return (
            torch.cat((inputs, self._inputs[appended])),
            torch.cat((labels, self._labels[appended])),
        )

    def _own_in(self, index: Tensor) -> int:
        """How many of the batch's samples are not appended; they come first."""
        possible = self._own_of[len(index)]
        if len(possible) == 1:
            return next(iter(possible))
        return int((index < len(self.samples)).sum())


def _spread(count: int, batches: int) -> list[int]:
    """How many of ``count`` samples each batch gets; the first batches may get one more."""
    least, rest = divmod(count, batches)
    return [least + (number < rest) for number in range(batches)]


class AppendedData(ClientData):
    """A client's data with extra samples in its training batches only.

    Args:
        data: the client's data.
        inputs: [m, *input_shape] float32, the m appended samples as inputs of the model.
        labels: [m] int64, the classes of the appended samples.
        order: draws the order of the appended samples in the round's epochs.
    """

    def __init__(self, data: ClientData, inputs: Tensor, labels: Tensor, order: Generator) -> None:
        super().__init__(**{each.name: getattr(data, each.name) for each in fields(ClientData)})
        self._batches, self._steps = data.local_batches, data.steps
        self._appended = inputs, labels, order

    def steps(self, planned: int) -> int:
        """The number of the client's steps in a round; appended samples do not change it."""
        return self._steps(planned)

    def local_batches(self, round: int, batch_size: int, last: LastBatch = KEEP) -> AppendedBatches:
        """This round's shuffled batches, with appended samples."""
        return AppendedBatches(self._batches(round, batch_size, last), *self._appended)
