"""A partitioned dataset: one tensor on the device, index tensors for the clients."""

from collections.abc import Callable, Iterator, Sequence
from copy import copy
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
import torch
from torch import Generator, Tensor
from torch.utils.data import IterableDataset

from fedexp.core.client_protocol import Batch
from fedexp.core.randomness import torch_generator
from fedexp.core.transfer import to_device
from fedexp.data.augment import Augmentation, augmentation
from fedexp.data.dataset import TOKEN_TYPES, Dataset, Split
from fedexp.data.split import class_counts

KEEP_BELOW = 2**29
"""Bytes of normalised images that ``Samples`` keeps at most: 512 MiB; CIFAR's test set has 117."""


class Samples:
    """One split on a device; uint8 images are normalised batch by batch, token ids become int64.

    Args:
        split: the samples.
        mean: of each channel, of images.
        std: likewise.
        device: of the tensors.
        keep_normalised: whether ``batches`` normalises all images once and keeps them, if they take
            at most ``KEEP_BELOW`` bytes: for a split that many models are scored on.
    """

    def __init__(
        self,
        split: Split,
        mean: Sequence[float],
        std: Sequence[float],
        device: torch.device,
        keep_normalised: bool = False,
    ) -> None:
        self.inputs = split.inputs.to(device)
        self.labels = split.labels.to(device)
        # (x / 255 - mean) / std, as one multiplication and one addition per batch.
        scale = 1 / (255 * torch.tensor(std, dtype=torch.float32))
        shift = -torch.tensor(mean, dtype=torch.float32) / torch.tensor(std, dtype=torch.float32)
        self.scale = scale.view(1, -1, 1, 1).to(device)
        self.shift = shift.view(1, -1, 1, 1).to(device)
        images = self.inputs.dtype == torch.uint8
        self._keeps = keep_normalised and images and 4 * self.inputs.numel() <= KEEP_BELOW
        self._kept: Tensor | None = None

    def __len__(self) -> int:
        return len(self.labels)

    def gather(
        self,
        index: Tensor,
        augment: Callable[[Tensor], Tensor] | None = None,
    ) -> Batch:
        """The samples at ``index`` [B] as a batch, augmented if asked."""
        inputs = self.inputs.index_select(0, index)
        if augment is not None:
            inputs = augment(inputs)
        return self._prepared(inputs), self.labels.index_select(0, index)

    def batches(self, batch_size: int, index: Tensor | None = None) -> Iterator[Batch]:
        """All samples, or those at ``index``, in order and without augmentation."""
        if index is None:
            index = torch.arange(len(self), device=self.labels.device)
        for chunk in torch.split(index, batch_size):
            if self._keeps:
                yield self._normalised().index_select(0, chunk), self.labels.index_select(0, chunk)
            else:
                yield self.gather(chunk)

    def _prepared(self, inputs: Tensor) -> Tensor:
        """Some of the inputs as a model takes them."""
        if inputs.dtype == torch.uint8:
            return torch.addcmul(self.shift, inputs.float(), self.scale)
        return inputs.long() if inputs.dtype in TOKEN_TYPES else inputs

    def _normalised(self) -> Tensor:
        """All images as a model takes them; callers copy from it, as a model may change a batch."""
        if self._kept is None:
            with torch.inference_mode(False):  # also for passes with gradients
                pieces = torch.split(self.inputs, 1000)
                self._kept = torch.cat([self._prepared(piece) for piece in pieces])
        return self._kept


class Subset:
    """Some samples of a split, without augmentation; has what evaluation uses of ``Samples``.

    Args:
        samples: the split.
        index: [m] positions in the split.
    """

    def __init__(self, samples: Samples, index: Tensor) -> None:
        self.samples, self.index = samples, index

    def __len__(self) -> int:
        return len(self.index)

    @property
    def labels(self) -> Tensor:
        """[m] the class of each sample."""
        return self.samples.labels.index_select(0, self.index)

    def batches(self, batch_size: int, index: Tensor | None = None) -> Iterator[Batch]:
        """All of them, or those at ``index`` among them, in order and without augmentation."""
        return self.samples.batches(batch_size, self.index if index is None else self.index[index])


class LocalBatches(IterableDataset[Batch]):
    """One client's shuffled batches in one round; each iteration over it is the next epoch.

    Also a torch dataset, so that ``DataLoader(batches, batch_size=None)`` feeds a stock Trainer
    with exactly these batches. The last short batch is kept.

    Attributes:
        shares_samples: whether all samples are in ``samples``, which clients share.
    """

    shares_samples: ClassVar[bool] = True

    def __init__(
        self,
        samples: Samples,
        index: Tensor,
        batch_size: int,
        augment: Augmentation | None,
        order: Generator,
        draws: Generator,
    ) -> None:
        self.samples, self.index, self.batch_size = samples, index, batch_size
        self.augment, self.order, self.draws = augment, order, draws

    def __len__(self) -> int:
        return -(-len(self.index) // self.batch_size)

    def __iter__(self) -> Iterator[Batch]:
        for chunk in self.chunks():
            yield self.gather(chunk)

    def gather(self, index: Tensor) -> Batch:
        """The samples at ``index`` [B], one of ``chunks``, as a batch."""
        return self.samples.gather(index, self.augmented)

    def augmented(self, inputs: Tensor) -> Tensor:
        """These inputs [B, ...] with the next random draws."""
        return inputs if self.augment is None else self.augment(inputs, self.draws)

    def chunks(self) -> Sequence[Tensor]:
        """The samples of each of the next epoch's batches, [B] and a shorter last one."""
        permutation = torch.randperm(len(self.index), generator=self.order)
        return torch.split(self.index[to_device(permutation, self.index.device)], self.batch_size)


def joined(clients: Sequence[LocalBatches]) -> Sequence[LocalBatches]:
    """The same batches, all of them of one ``Samples``, from which one gather takes them.

    Clients that do not share samples get copies whose samples are those of all, one client after
    another. Their generators are not copied. Batches with ``shares_samples`` false stay as they
    are, and so do those of clients that share samples.
    """
    inputs = clients[0].samples.inputs
    if not all(c.shares_samples for c in clients) or all(
        c.samples.inputs is inputs for c in clients
    ):
        return clients
    whole = copy(clients[0].samples)
    whole.inputs = torch.cat([each.samples.inputs for each in clients])
    whole.labels = torch.cat([each.samples.labels for each in clients])
    moved, start = [], 0
    for each in clients:
        own = copy(each)
        own.samples, own.index = whole, each.index + start
        start += len(each.samples)
        moved.append(own)
    return moved


def _no_samples() -> Tensor:
    return torch.empty(0, dtype=torch.int64)


@dataclass(frozen=True)
class ClientData:
    """One client's data.

    Attributes:
        client: its number, 0 to N-1.
        class_counts: [C] training samples of each class, without those held out for validation.
        train_index: [n_k] positions of its training samples in the training split.
        test_index: its share of the test split, distributed over classes like its training data.
        validation_index: [m_k] positions, in the training split, of the samples held out for
            validation; disjoint from ``train_index``.
        validation_positions: [m_k] where these samples are in ``FederatedData.validation``.
    """

    client: int
    class_counts: Tensor
    train_index: Tensor
    test_index: Tensor
    federation: "FederatedData"
    validation_index: Tensor = field(default_factory=_no_samples, kw_only=True)
    validation_positions: Tensor = field(default_factory=_no_samples, kw_only=True)

    @property
    def num_samples(self) -> int:
        """n_k."""
        return len(self.train_index)

    @property
    def labels(self) -> Tensor:
        """[n_k] the class of each training sample."""
        return self.federation.train.labels[self.train_index]

    @property
    def held_out(self) -> Subset:
        """The samples that it holds out for validation."""
        return Subset(self.federation.train, self.validation_index)

    def inputs(self, positions: Tensor, augment: Generator | None = None) -> Tensor:
        """The inputs [B, *input_shape] at ``positions`` among its samples.

        With a generator they are augmented as in local training, with draws of it.
        """
        chosen, samples = self.federation.augment, self.federation.train

        def augmented(inputs: Tensor) -> Tensor:
            return chosen(inputs, augment) if chosen and augment else inputs

        return samples.gather(self.train_index[positions], augmented)[0]

    def local_batches(self, round: int, batch_size: int) -> LocalBatches:
        """Shuffled and augmented batches for this round's local training."""
        data, where = self.federation, (round, self.client)
        return LocalBatches(
            data.train,
            self.train_index,
            batch_size,
            data.augment,
            order=torch_generator(data.seed, "batches", *where),
            draws=torch_generator(data.seed, "augment", *where),
        )

    def batches(self, batch_size: int) -> Iterator[Batch]:
        """The training samples once, in order and without augmentation."""
        return self.federation.train.batches(batch_size, self.train_index)


class FederatedData:
    """The population's data on one device.

    Args:
        dataset: the samples.
        train_indices: for each client, the positions in the training split that it trains on.
        test_indices: for each client, its positions in the test split.
        augment: name of the augmentation of training images (``fedexp.data.augment``).
        seed: seed of the run; batches are keyed by it.
        device: of the tensors.
        validation_indices: for each client, the positions in the training split that it holds out;
            None if there is no validation data.

    Attributes:
        train: the whole training split, samples held out for validation included.
        test: the test split.
        validation: what all clients hold out, client after client; empty without validation data.
        class_counts: [N, C] samples of each class that each client trains on.
        clients: each client's data.
    """

    class_counts: Tensor
    clients: Sequence[ClientData]

    def __init__(
        self,
        dataset: Dataset,
        train_indices: Sequence[np.ndarray],
        test_indices: Sequence[np.ndarray],
        augment: str,
        seed: int,
        device: torch.device,
        validation_indices: Sequence[np.ndarray] | None = None,
    ) -> None:
        if validation_indices is None:
            validation_indices = [np.empty(0, dtype=np.int64)] * len(train_indices)
        self.description = dataset.description
        self.train = Samples(dataset.train, dataset.mean, dataset.std, device)
        self.test = Samples(dataset.test, dataset.mean, dataset.std, device, keep_normalised=True)
        # Only uint8 images have a mean: others are normalised, so that it is zero.
        fill = torch.tensor([round(255 * mean) for mean in dataset.mean] or [0]).to(device)
        self.augment = augmentation(augment, fill)
        self.seed = seed
        counts = class_counts(
            dataset.train.labels.numpy(), train_indices, dataset.description.num_classes
        )
        self.class_counts = torch.from_numpy(counts)
        held_out = [torch.from_numpy(index).to(device) for index in validation_indices]
        self.validation = Subset(self.train, torch.cat(held_out))
        positions = torch.arange(len(self.validation), device=device)
        self.clients = [
            ClientData(
                client,
                self.class_counts[client].to(device),
                torch.from_numpy(train).to(device),
                torch.from_numpy(test).to(device),
                self,
                validation_index=validation,
                validation_positions=position,
            )
            for client, (train, test, validation, position) in enumerate(
                zip(
                    train_indices,
                    test_indices,
                    held_out,
                    torch.split(positions, [len(index) for index in held_out]),
                    strict=True,
                )
            )
        ]

    @property
    def sizes(self) -> Tensor:
        """[N] int64: the samples that each client trains on."""
        return self.class_counts.sum(dim=1)

    @property
    def counted(self) -> Tensor:
        """[n] int64, in order: the clients whose classes are counted from the start; here all."""
        return torch.arange(len(self.clients))

    @property
    def counted_classes(self) -> Tensor:
        """[n, C] class counts of the clients in ``counted``."""
        return self.class_counts

    def classes_of(self, clients: Tensor) -> Tensor:
        """[n, C] class counts of ``clients`` [n], which are counted now if they are not yet."""
        return self.class_counts[clients]
