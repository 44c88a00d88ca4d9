"""A client's data with extra samples appended to its training batches."""

from collections.abc import Iterator, Sequence

import torch
from torch import Generator, Tensor

from fedexp.core.client_protocol import Batch
from fedexp.data.batches import LocalBatches
from fedexp.data.federated import ClientData


class AppendedBatches(LocalBatches):
    """A client's batches with extra samples at their ends.

    Every epoch shuffles the appended samples and spreads them evenly over the batches. So each
    sample, appended or not, is used once per epoch, and the number of steps does not change.
    Appended samples are not augmented.

    Args:
        whole: the batches without appended samples.
        inputs: [m, *input_shape] float32, as the model sees them.
        labels: [m] int64.
        order: draws the order of the appended samples.
    """

    shares_samples = False

    def __init__(
        self, whole: LocalBatches, inputs: Tensor, labels: Tensor, order: Generator
    ) -> None:
        super().__init__(
            whole.samples, whole.index, whole.batch_size, whole.augment, whole.order, whole.draws
        )
        self._whole, self._inputs, self._labels, self._order = whole, inputs, labels, order

    def __len__(self) -> int:
        return len(self._whole)

    def chunks(self) -> Sequence[Tensor]:
        """Positions of each batch's samples; appended sample j is at position len(samples) + j."""
        chunks = self._whole.chunks()
        permutation = torch.randperm(len(self._labels), generator=self._order)
        appended = (len(self.samples) + permutation.to(self.index.device)).tensor_split(len(chunks))
        return [torch.cat(pair) for pair in zip(chunks, appended, strict=True)]

    def gather(self, index: Tensor) -> Batch:
        """The batch of the samples at ``index`` [B], the client's own samples first."""
        is_appended = index >= len(self.samples)
        inputs, labels = super().gather(index[~is_appended])
        own = index[is_appended] - len(self.samples)
        return torch.cat((inputs, self._inputs[own])), torch.cat((labels, self._labels[own]))


class AppendedData:
    """A client's data with extra samples in its training batches, and nowhere else.

    Args:
        data: the client's data.
        inputs: [m, *input_shape] float32, as the model sees them.
        labels: [m] int64.
        order: draws the order of the appended samples in the round's epochs.
    """

    def __init__(self, data: ClientData, inputs: Tensor, labels: Tensor, order: Generator) -> None:
        self._data, self._inputs, self._labels, self._order = data, inputs, labels, order

    @property
    def client(self) -> int:
        """The client's number."""
        return self._data.client

    @property
    def num_samples(self) -> int:
        """n_k, without the appended samples."""
        return self._data.num_samples

    @property
    def class_counts(self) -> Tensor:
        """[C] number of training samples of each class, without appended samples."""
        return self._data.class_counts

    @property
    def labels(self) -> Tensor:
        """[n_k] the class of each training sample, without appended samples."""
        return self._data.labels

    @property
    def is_augmented(self) -> bool:
        """Whether local training augments the client's own inputs."""
        return self._data.is_augmented

    def inputs(self, positions: Tensor, augment: Generator | None = None) -> Tensor:
        """The inputs [B, *input_shape] at ``positions`` of its own samples."""
        return self._data.inputs(positions, augment)

    def local_batches(self, round: int, batch_size: int) -> AppendedBatches:
        """Shuffled batches with appended samples."""
        whole = self._data.local_batches(round, batch_size)
        return AppendedBatches(whole, self._inputs, self._labels, self._order)

    def batches(self, batch_size: int, augment: Generator | None = None) -> Iterator[Batch]:
        """All its own training samples once, in order."""
        return self._data.batches(batch_size, augment)
