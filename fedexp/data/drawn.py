"""A population whose clients' samples are drawn on demand, and dropped after use."""

from abc import abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass
from typing import ClassVar, overload

import numpy as np
import torch
from pydantic import PositiveInt
from torch import Tensor

from fedexp.core.description import Description
from fedexp.data.dataset import Dataset, Describer, Split
from fedexp.data.federated import ClientData, FederatedData
from fedexp.data.samples import Samples, Subset
from fedexp.data.train_test import TestFraction
from fedexp.errors import InputError
from fedexp.rounding import rounded_down

_KEPT_BYTES = 2**27
"""Bytes of drawn samples that stay in memory (128 MiB), so that a round draws no client twice."""


@dataclass
class DrawnSource(Describer):
    """A rule that draws the samples of any client, in a population of any size.

    A client's samples depend only on the client's number, so they can be drawn again at any time.

    Args:
        test_fraction: share of each client's samples for testing. At least one sample is for
            testing and at least one for training.
        test_clients: number of clients with test samples in the test split. These clients are
            evenly spaced, and their class counts are known from the start.
    """

    traits = frozenset()  # memory does not hold all clients at once
    unread: ClassVar = dict.fromkeys(
        ("partition.take", "partition.split_users"), "because these data define the clients"
    )

    test_fraction: TestFraction
    test_clients: PositiveInt

    @abstractmethod
    def totals(self, num_clients: int) -> np.ndarray:
        """For each of the N clients, its number of training and test samples together, [N] int64.

        Each client has at least two samples.
        """

    @abstractmethod
    def draw(self, client: int, total: int) -> Split:
        """Draw all ``total`` samples of a client; the training samples come first."""

    def train_sizes(self, totals: np.ndarray) -> np.ndarray:
        """Each client's number of training samples [N]; ``totals`` [N] counts test samples, too."""
        different, places = np.unique(totals, return_inverse=True)
        sizes = [rounded_down(1 - self.test_fraction, total) for total in different.tolist()]
        return np.array(sizes)[places].clip(1, totals - 1)


class DrawnData(FederatedData):
    """A population whose clients' samples are drawn on demand.

    The sizes of all clients are known from the start. Class counts are known from the start only
    for the clients in ``counted``. Only these clients have a test split; other clients' test
    samples are not used. ``clients[k].population`` is a copy of this object; the copy's ``train``
    holds only the samples of client k.

    Args:
        source: draws the samples of the clients.
        num_clients: N, the number of clients.
        seed: seed of the run; the order of the batches follows from it.
        device: the device of the tensors.

    Attributes:
        train: empty; each client has its own training samples.
    """

    can_leave_out = False  # clients are drawn with all their samples

    def __init__(
        self, source: DrawnSource, num_clients: int, seed: int, device: torch.device
    ) -> None:
        self.description: Description = source.describe()
        self.seed, self.augment = seed, None
        self._source, self._device = source, device
        self._totals = source.totals(num_clients)
        self._sizes = source.train_sizes(self._totals)
        spaced = np.linspace(0, num_clients - 1, min(source.test_clients, num_clients))
        self._classes: dict[int, Tensor] = {}  # client -> its class counts, for ``counted``
        tests = []
        for client in spaced.round().astype(np.int64).tolist():
            split, size = source.draw(client, int(self._totals[client])), self._sizes[client]
            self._classes[client] = self._count(split.labels[:size])
            tests.append(split.take(np.arange(size, len(split))))
        test = Split(
            torch.cat([each.inputs for each in tests]), torch.cat([each.labels for each in tests])
        )
        whole = Dataset(self.description, test, test)  # may raise InputError
        self.preparation = whole.preparation
        positions = torch.split(torch.arange(len(test), device=device), list(map(len, tests)))
        self._tests = dict(zip(self._classes, positions, strict=True))
        self.test = Samples(test, (), (), device)
        self.train = Samples(test.take(np.arange(0)), (), (), device)
        self.validation = Subset(self.train, torch.arange(0, device=device))
        self.clients = DrawnClients(num_clients, self._draw)

    @property
    def sizes(self) -> Tensor:
        """The number of training samples of each of the N clients, [N] int64."""
        return torch.from_numpy(self._sizes)

    @property
    def counted(self) -> Tensor:
        """The n clients with a test split and known class counts: client numbers [n], ascending."""
        return torch.tensor(list(self._classes))

    @property
    def class_counts(self) -> Tensor:  # type: ignore[override]
        """The number of training samples of each of C classes at each of N clients, [N, C].

        Raises InputError unless all clients are in ``counted``.
        """
        if len(self._classes) < len(self.clients):
            raise InputError(
                f"data.test_clients={len(self._classes)}: the class counts of all "
                f"{len(self.clients):,} clients are needed"
            )
        return self.counted_classes

    @property
    def counted_classes(self) -> Tensor:
        """The class counts [n, C] of the n clients in ``counted``."""
        return torch.stack(list(self._classes.values()))

    def classes_of(self, clients: Tensor) -> Tensor:
        """The class counts [n, C] of the training samples of ``clients`` [n].

        If a client is not in ``counted``, its samples are drawn and counted.
        """
        counts = torch.zeros(len(clients), self.description.num_classes, dtype=torch.int64)
        for place, client in enumerate(clients.tolist()):
            known = self._classes.get(client)
            counts[place] = self.clients[client].class_counts if known is None else known
        return counts

    def _draw(self, client: int) -> ClientData:
        """Draw a client's samples; return the client's data."""
        size, own = int(self._sizes[client]), copy(self)
        split = self._source.draw(client, int(self._totals[client]))
        split = Split(split.inputs[:size].clone(), split.labels[:size].clone())
        own.train = Samples(split, (), (), self._device)
        return ClientData(
            client,
            self._count(split.labels).to(self._device),
            torch.arange(size, device=self._device),
            self._tests.get(client, torch.arange(0, device=self._device)),
            own,
        )

    def _count(self, labels: Tensor) -> Tensor:
        return labels.bincount(minlength=self.description.num_classes)


class DrawnClients(Sequence[ClientData]):
    """The data of each client, drawn when accessed.

    The data of the most recently accessed clients stay in memory.

    Args:
        count: N, the number of clients.
        draw: a pure function from a client's number to its data.
        kept_bytes: largest number of bytes of samples in memory; only the samples of a single
            client may be larger.
    """

    def __init__(
        self, count: int, draw: Callable[[int], ClientData], kept_bytes: int = _KEPT_BYTES
    ) -> None:
        self._count, self._draw, self._kept_bytes = count, draw, kept_bytes
        self._kept: OrderedDict[int, ClientData] = OrderedDict()  # the least recently used is first
        self._used = 0

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, client: int) -> ClientData: ...
    @overload
    def __getitem__(self, client: slice) -> Sequence[ClientData]: ...
    def __getitem__(self, client: int | slice) -> ClientData | Sequence[ClientData]:
        if isinstance(client, slice):
            return [self[each] for each in range(*client.indices(self._count))]
        if not -self._count <= client < self._count:
            raise IndexError(client)
        client %= self._count
        if client in self._kept:
            self._kept.move_to_end(client)
            return self._kept[client]
        data = self._kept[client] = self._draw(client)
        self._used += _nbytes(data)
        while self._used > self._kept_bytes and len(self._kept) > 1:
            self._used -= _nbytes(self._kept.popitem(last=False)[1])
        return data


def _nbytes(data: ClientData) -> int:
    size: int = data.population.train.inputs.nbytes
    return size
