"""A partitioned dataset: one tensor with all samples, and for each client their positions."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import ClassVar

import numpy as np
import torch
from torch import Generator, Tensor

from fedexp.core.client_protocol import Batch
from fedexp.core.last_batch import KEEP, LastBatch
from fedexp.core.randomness import torch_generator
from fedexp.data.augment import augmentations
from fedexp.data.batches import LocalBatches
from fedexp.data.dataset import Dataset
from fedexp.data.samples import Samples, Subset
from fedexp.data.split import class_counts


@dataclass(frozen=True)
class ClientData:
    """One client's data.

    Attributes:
        client: the client's number k, 0 to N-1.
        class_counts: [C] number of training samples of each class, without validation samples.
        train_index: [n_k] positions of the client's training samples in the training split.
        test_index: positions of the client's test samples in the test split. The config's
            ``partition.test_split`` says whether they are dealt by class or by user.
        population: the data of all clients, which holds the samples.
        validation_index: [m_k] positions of the client's validation samples in the training split.
            They are not in ``train_index``.
    """

    client: int
    class_counts: Tensor
    train_index: Tensor
    test_index: Tensor
    population: "FederatedData"
    validation_index: Tensor = field(default_factory=lambda: torch.arange(0), kw_only=True)

    @property
    def num_samples(self) -> int:
        """n_k, the client's number of training samples."""
        return len(self.train_index)

    @property
    def labels(self) -> Tensor:
        """The class of each of the client's n_k training samples, [n_k]."""
        return self.population.train.labels[self.train_index]

    @property
    def is_augmented(self) -> bool:
        """Whether local training augments the inputs."""
        return self.population.augment is not None

    @property
    def held_out(self) -> Subset:
        """The client's validation samples."""
        return Subset(self.population.train, self.validation_index)

    def inputs(self, positions: Tensor, augment: Generator | None = None) -> Tensor:
        """The inputs [B, *input_shape] at ``positions``; see ``LocalData.inputs``."""
        chosen, samples = self.population.augment, self.population.train

        def augmented(inputs: Tensor) -> Tensor:
            return chosen(inputs, augment) if chosen and augment else inputs

        return samples.gather(self.train_index[positions], augmented)[0]

    def subset(self, positions: Tensor) -> "ClientData":
        """The data with only the training samples at ``positions`` [m]; m must be at least 1."""
        labels = self.labels[positions]
        counts = torch.zeros_like(self.class_counts).index_add_(0, labels, torch.ones_like(labels))
        return replace(self, train_index=self.train_index[positions], class_counts=counts)

    def steps(self, planned: int) -> int:
        """The client's steps in a round: ``planned``, unless a subclass overrides this method."""
        return planned

    def local_batches(self, round: int, batch_size: int, last: LastBatch = KEEP) -> LocalBatches:
        """Shuffled and augmented batches for this round's local training."""
        data, where = self.population, (round, self.client)
        return LocalBatches(
            data.train,
            self.train_index,
            last.lengths(self.num_samples, batch_size),
            data.augment,
            order=torch_generator(data.seed, "batches", *where),
            draws=torch_generator(data.seed, "augment", *where),
        )

    def batches(
        self, batch_size: int, augment: Generator | None = None, last: LastBatch = KEEP
    ) -> Iterator[Batch]:
        """Batches of all training samples, in order; ``augment`` works as in ``inputs``."""
        targets = self.population.train.targets[self.train_index]
        lengths = last.lengths(self.num_samples, batch_size)
        for positions in torch.split(torch.arange(len(targets), device=targets.device), lengths):
            yield self.inputs(positions, augment), targets[positions]


class FederatedData:
    """The data of all clients, on one device.

    Args:
        dataset: the samples.
        train_indices: for each client, the positions of its training samples in the training split.
        test_indices: for each client, the positions of its test samples in the test split.
        augment: name of the augmentation of training images (``fedexp.data.augment``).
        seed: seed of the run; the order of the batches follows from it.
        device: the device of the tensors.
        validation_indices: for each client, the positions of its validation samples in the training
            split; None if there is no validation data.
        held_out: the clients that never train.
        names: the name of each client; None if clients have no names.

    Attributes:
        description: shape of the inputs and names of the classes.
        preparation: the rule that turns raw inputs into a model's inputs.
        train: the whole training split, including validation samples.
        test: the test split.
        validation: the validation samples, client after client; possibly empty.
        class_counts: [N, C] number of training samples of each class at each client.
        clients: the data of each client; a client that is held out has no samples here.
        held_out_clients: the data of each client that is held out, by the client's number.
        names: the name of each client, "" if it has none; None if clients have no names.
        can_leave_out: whether ``leave_out`` is possible.
    """

    can_leave_out: ClassVar[bool] = True
    class_counts: Tensor
    clients: Sequence[ClientData]
    held_out_clients: Mapping[int, ClientData] = MappingProxyType({})
    names: Sequence[str] | None = None

    def __init__(
        self,
        dataset: Dataset,
        train_indices: Sequence[np.ndarray],
        test_indices: Sequence[np.ndarray],
        augment: str,
        seed: int,
        device: torch.device,
        validation_indices: Sequence[np.ndarray] | None = None,
        held_out: Collection[int] = (),
        names: Sequence[str] | None = None,
    ) -> None:
        self.names = names
        nothing = np.empty(0, dtype=np.int64)
        if validation_indices is None:
            validation_indices = [nothing] * len(train_indices)
        self.description, self.preparation = dataset.description, dataset.preparation
        self.train = Samples(dataset.train, dataset.mean, dataset.std, device)
        self.test = Samples(dataset.test, dataset.mean, dataset.std, device, keep_normalised=True)
        # The mean pads augmented images. Inputs without a mean are already normalised to mean 0.
        fill = torch.tensor([round(255 * mean) for mean in dataset.mean] or [0]).to(device)
        self.augment = augmentations(fill)[augment]
        self.seed = seed
        labels, classes = dataset.train.labels.numpy(), dataset.description.num_classes
        counts = torch.from_numpy(class_counts(labels, train_indices, classes))
        train, test, validation = (
            _on_device(indices, device)
            for indices in (train_indices, test_indices, validation_indices)
        )
        self.class_counts = counts.clone()
        self.clients = [
            ClientData(n, own, train[n], test[n], self, validation_index=validation[n])
            for n, own in enumerate(counts.to(device))
        ]
        left_out = {client: self.clients[client] for client in held_out}
        self.leave_out(held_out)
        self.held_out_clients = left_out

    def leave_out(self, clients: Collection[int]) -> None:
        """Take all samples from these clients, which are then clients without data."""
        nothing = torch.arange(0, device=self.train.labels.device)
        self.class_counts[list(clients)] = 0
        self.clients = [
            ClientData(n, counts, nothing, nothing, self, validation_index=nothing)
            if n in clients
            else self.clients[n]
            for n, counts in enumerate(self.class_counts.to(nothing.device))
        ]
        others = {n: each for n, each in self.held_out_clients.items() if n not in clients}
        self.held_out_clients = others
        validation = torch.cat([client.validation_index for client in self.clients])
        self.validation = Subset(self.train, validation)

    @property
    def sizes(self) -> Tensor:
        """The number of training samples of each of the N clients, [N] int64."""
        return self.class_counts.sum(dim=1)

    @property
    def counted(self) -> Tensor:
        """The n clients with known class counts, here all: client numbers [n], ascending."""
        return torch.arange(len(self.clients))

    @property
    def counted_classes(self) -> Tensor:
        """The class counts [n, C] of the n clients in ``counted``."""
        return self.class_counts

    def classes_of(self, clients: Tensor) -> Tensor:
        """The class counts [n, C] of the training samples of ``clients`` [n].

        The same method of ``DrawnData`` may have to draw these samples first.
        """
        return self.class_counts[clients]


def _on_device(indices: Sequence[np.ndarray], device: torch.device) -> Sequence[Tensor]:
    """Copy the clients' positions to the device in one piece; returns one tensor for each client.

    Ten thousand small copies would wait for a GPU ten thousand times.
    """
    whole = torch.from_numpy(np.concatenate(indices)).to(device)
    return torch.split(whole, [len(index) for index in indices])
