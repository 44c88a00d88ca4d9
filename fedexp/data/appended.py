"""A client's data with further samples of its own appended to its training batches."""

from collections.abc import Iterator, Sequence

import torch
from torch import Generator, Tensor

from fedexp.core.client_protocol import Batch
from fedexp.data.batches import LocalBatches
from fedexp.data.federated import ClientData


class AppendedBatches(LocalBatches):
    """The batches of a client, each followed by some of its appended samples.

    In every epoch each appended sample is in one batch. They are shuffled anew and spread over the
    batches as evenly as can be. So there are as many steps as without them, and each sample of
    either kind counts once in an epoch. Appended samples are not augmented.

    Args:
        whole: the batches to append to.
        inputs: [m, *input_shape] float32, as the model sees them.
        labels: [m] int64.
        order: decides the order of the appended samples.
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
        """As of ``LocalBatches``; appended sample j has the position len(samples) + j."""
        chunks = self._whole.chunks()
        permutation = torch.randperm(len(self._labels), generator=self._order)
        appended = (len(self.samples) + permutation.to(self.index.device)).tensor_split(len(chunks))
        return [torch.cat(pair) for pair in zip(chunks, appended, strict=True)]

    def gather(self, index: Tensor) -> Batch:
        """The samples at ``index`` [B], those of the client first."""
        is_appended = index >= len(self.samples)
        inputs, labels = super().gather(index[~is_appended])
        own = index[is_appended] - len(self.samples)
        return torch.cat((inputs, self._inputs[own])), torch.cat((labels, self._labels[own]))


class AppendedData:
    """A client's data whose training batches have further samples; all else is as without them.

    Args:
        data: the client's data.
        inputs: [m, *input_shape] float32, as the model sees them.
        labels: [m] int64.
        order: decides the order of the appended samples in the round's epochs.
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
        """[C] training samples of each class, without the appended ones."""
        return self._data.class_counts

    @property
    def labels(self) -> Tensor:
        """[n_k] the class of each training sample, without the appended ones."""
        return self._data.labels

    @property
    def is_augmented(self) -> bool:
        """Whether local training augments its own inputs."""
        return self._data.is_augmented

    def inputs(self, positions: Tensor, augment: Generator | None = None) -> Tensor:
        """The inputs [B, *input_shape] at ``positions`` among its own samples."""
        return self._data.inputs(positions, augment)

    def local_batches(self, round: int, batch_size: int) -> AppendedBatches:
        """Shuffled batches with appended samples."""
        whole = self._data.local_batches(round, batch_size)
        return AppendedBatches(whole, self._inputs, self._labels, self._order)

    def batches(self, batch_size: int, augment: Generator | None = None) -> Iterator[Batch]:
        """Its own training samples once, in order."""
        return self._data.batches(batch_size, augment)
