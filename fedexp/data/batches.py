"""The batches of a client's local training."""

import math
from collections.abc import Iterator, Sequence
from copy import copy
from itertools import chain, islice

import torch
from torch import Generator, Tensor
from torch.utils.data import IterableDataset

from fedexp.core.client_protocol import Batch
from fedexp.core.transfer import to_device
from fedexp.data.augment import Augmentation
from fedexp.data.samples import Samples


class LocalBatches(IterableDataset[Batch]):
    """One client's shuffled batches in one round; each iteration is the next epoch.

    A shorter last batch is kept. This is also a torch dataset: ``DataLoader(batches,
    batch_size=None)`` feeds a stock Trainer with exactly these batches.
    """

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

    @property
    def shares_samples(self) -> bool:
        """Whether ``samples`` holds all samples and may be shared by clients."""
        return self.samples.is_shared

    def __len__(self) -> int:
        return -(-len(self.index) // self.batch_size)

    def __iter__(self) -> Iterator[Batch]:
        for chunk in self.chunks():
            yield self.gather(chunk)

    def steps_in(self, epochs: float) -> int:
        """The number of steps that is nearest to ``epochs`` epochs, at least one."""
        return max(1, math.floor(epochs * len(self) + 0.5))

    def next_chunks(self, steps: int) -> Iterator[Tensor]:
        """``chunks`` of the next ``steps`` batches: of whole epochs, then of a part of one."""
        epochs = range(-(-steps // len(self)))
        return islice(chain.from_iterable(self.chunks() for _ in epochs), steps)

    def gather(self, index: Tensor) -> Batch:
        """The batch of the samples at ``index`` [B], one of ``chunks``."""
        return self.samples.gather(index, self.augmented)

    def augmented(self, inputs: Tensor) -> Tensor:
        """Augment inputs [B, ...] with the next random draws."""
        return inputs if self.augment is None else self.augment(inputs, self.draws)

    def chunks(self) -> Sequence[Tensor]:
        """Positions of each batch's samples in the next epoch, [B]; the last may be shorter."""
        permutation = torch.randperm(len(self.index), generator=self.order)
        return torch.split(self.index[to_device(permutation, self.index.device)], self.batch_size)


def joined(clients: Sequence[LocalBatches]) -> Sequence[LocalBatches]:
    """Copy the clients' samples into one ``Samples``, so that one gather makes all their batches.

    Returns copies of the batches; their samples are the samples of all clients, one client after
    another. A copy shares its generators with the original. If the clients share their samples
    already, or if one of them cannot, the originals are returned.
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
