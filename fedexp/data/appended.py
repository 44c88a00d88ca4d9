"""A client's data with extra samples appended to its training batches."""

from collections.abc import Sequence
from dataclasses import fields

import torch
from torch import Generator, Tensor

from fedexp.core.client_protocol import Batch
from fedexp.core.last_batch import KEEP, LastBatch
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

    @property
    def shares_samples(self) -> bool:
        """False: ``samples`` lacks the appended samples, which belong to this client only."""
        return False

    def chunks(self) -> Sequence[Tensor]:
        """Positions of each batch's samples; appended sample j is at position len(samples) + j."""
        chunks = self._whole.chunks()
        permutation = torch.randperm(len(self._labels), generator=self._order)
        appended = (len(self.samples) + permutation.to(self.index.device)).tensor_split(len(chunks))
        return [torch.cat(pair) for pair in zip(chunks, appended, strict=True)]

    def gather(self, index: Tensor) -> Batch:
        """The batch of the B samples at the positions ``index`` [B].

        Appended sample j has the position ``len(samples) + j``. In the batch the appended samples
        come last.
        """
        is_appended = index >= len(self.samples)
        inputs, labels = super().gather(index[~is_appended])
        own = index[is_appended] - len(self.samples)
        return torch.cat((inputs, self._inputs[own])), torch.cat((labels, self._labels[own]))


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
