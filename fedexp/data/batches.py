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
    """One client's batches in one round; each loop over the object gives a newly shuffled epoch.

    The class is also a PyTorch dataset: ``DataLoader(batches, batch_size=None)`` feeds exactly
    these batches to Lightning's Trainer.

    Args:
        samples: the samples of the population.
        index: [n] positions of the client's n samples.
        lengths: the number of samples in each batch of an epoch. The epoch leaves out the samples
            that exceed their sum, which are others in every epoch.
        augment: augments a batch of inputs; None: no augmentation.
        order: draws the order of the samples.
        draws: draws the augmentation.
    """

    def __init__(
        self,
        samples: Samples,
        index: Tensor,
        lengths: Sequence[int],
        augment: Augmentation | None,
        order: Generator,
        draws: Generator,
    ) -> None:
        self.samples, self.index, self.lengths = samples, index, list(lengths)
        self.augment, self.order, self.draws = augment, order, draws

    @property
    def shares_samples(self) -> bool:
        """Whether one ``gather`` from ``samples`` may make the batches of several clients."""
        return self.samples.is_shared

    def __len__(self) -> int:
        return len(self.lengths)

    def __iter__(self) -> Iterator[Batch]:
        for chunk in self.chunks():
            yield self.gather(chunk)

    def steps_in(self, epochs: float) -> int:
        """The number of steps that is nearest to ``epochs`` epochs, at least one."""
        return nearest_steps(epochs, len(self))

    def samples_in(self, steps: int) -> int:
        """The number of samples in ``steps`` batches from the beginning of an epoch."""
        return count_samples(self.lengths, steps)

    def next_chunks(self, steps: int) -> Iterator[Tensor]:
        """The positions [B] of the samples in each of ``steps`` batches; begins a new epoch.

        Further epochs follow if ``steps`` exceeds the number of batches in an epoch.
        """
        epochs = range(-(-steps // len(self)))
        return islice(chain.from_iterable(self.chunks() for _ in epochs), steps)

    def gather(self, index: Tensor) -> Batch:
        """The augmented batch of the samples at the positions ``index`` [B], as in ``chunks``."""
        return self.samples.gather(index, self.augmented)

    def augmented(self, inputs: Tensor) -> Tensor:
        """Augment a batch of inputs [B, ...] with new random draws."""
        return inputs if self.augment is None else self.augment(inputs, self.draws)

    def chunks(self) -> Sequence[Tensor]:
        """For each batch of the next epoch, the positions [B] of its B samples."""
        permutation = torch.randperm(len(self.index), generator=self.order)[: sum(self.lengths)]
        return torch.split(self.index[to_device(permutation, self.index.device)], self.lengths)


def nearest_steps(epochs: float, batches: int) -> int:
    """The number of steps nearest to ``epochs`` epochs of ``batches`` batches, at least one."""
    return max(1, math.floor(epochs * batches + 0.5))


def count_samples(lengths: Sequence[int], steps: int) -> int:
    """The number of samples in ``steps`` batches from the beginning of an epoch.

    Args:
        lengths: the number of samples in each batch of an epoch.
        steps: number of batches; further epochs follow if it exceeds those of one.
    """
    epochs, rest = divmod(steps, len(lengths))
    return epochs * sum(lengths) + sum(lengths[:rest])


def joined(clients: Sequence[LocalBatches]) -> Sequence[LocalBatches]:
    """Copy the clients' samples into one ``Samples``, so that one gather makes all their batches.

    Returns copies of the batches; each copy holds the samples of all clients, one client after
    another. A copy shares its generators with the original. If all clients already use the same
    samples, or if ``shares_samples`` is false for a client, the originals are returned.
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
