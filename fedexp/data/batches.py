"""The batches of a client's local training."""

from collections.abc import Iterator, Sequence
from copy import copy
from typing import ClassVar

import torch
from torch import Generator, Tensor
from torch.utils.data import IterableDataset

from fedexp.core.client_protocol import Batch
from fedexp.core.transfer import to_device
from fedexp.data.augment import Augmentation
from fedexp.data.samples import Samples


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
