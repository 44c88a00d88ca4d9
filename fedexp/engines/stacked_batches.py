"""The batches of several clients, stacked step by step."""

from collections.abc import Sequence
from itertools import chain

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from fedexp.core.transfer import to_device
from fedexp.data.batches import LocalBatches, joined


class StackedBatches:
    """The batches of a stack of clients: in each step one batch for each unfinished client.

    Args:
        clients: each client's batches.
        steps: each client's number of steps, the largest first.

    Attributes:
        steps: the number of steps of each client.
        steps_of_last_epoch: for each client, how many of its last steps count as its last epoch,
            see ``Turn.begin_last_phase``.
    """

    def __init__(self, clients: Sequence[LocalBatches], steps: Sequence[int]) -> None:
        self._clients = clients = joined(clients)
        # Unless each client does, ``joined`` leaves the clients with different samples.
        self._share_samples = all(client.shares_samples for client in clients)
        self.steps = list(steps)
        pairs = list(zip(clients, steps, strict=True))
        chunks = [list(each.next_chunks(count)) for each, count in pairs]
        self.steps_of_last_epoch = [min(len(each), count) for each, count in pairs]
        takers = [chunks[: self.rows(step)] for step in range(len(self))]
        self._lengths = [[len(c[step]) for c in taking] for step, taking in enumerate(takers)]
        # One padded tensor for all steps: a row for each client in each step.
        index = pad_sequence(
            [c[step] for step, taking in enumerate(takers) for c in taking], batch_first=True
        )
        lengths = to_device(torch.tensor(list(chain(*self._lengths))), index.device)
        real = torch.arange(index.shape[1], device=index.device) < lengths[:, None]
        rows = [len(each) for each in self._lengths]
        self._index = torch.split(torch.where(real, index, index[:, :1]), rows)
        self._real = torch.split(real.float(), rows)
        starts = [all - last for all, last in zip(steps, self.steps_of_last_epoch, strict=True)]
        self._starts, self._last_epochs = starts, to_device(torch.tensor(starts), index.device)

    def __len__(self) -> int:
        """The number of steps of the client with the most steps."""
        return max(self.steps)

    def rows(self, step: int) -> int:
        """The number A of clients that take this step: the first A clients of the stack."""
        return sum(steps > step for steps in self.steps)

    def has_last_epoch(self, step: int) -> bool:
        """Whether this step is in the last epoch of any client."""
        return step >= min(self._starts[: self.rows(step)])

    def in_last_epoch(self, step: int) -> Tensor:
        """[A] bool: for each of the first A clients, whether this step is in its last epoch.

        Clients with fewer batches reach their last epoch earlier.
        """
        return self._last_epochs[: self.rows(step)] <= step

    def batch(self, step: int) -> tuple[Tensor, Tensor, Tensor]:
        """This step's batches: inputs and targets [A, B, ...], and ``Forward.real`` [A, B].

        Shorter batches are padded with copies of their first sample.
        """
        lengths = self._lengths[step]
        width = max(lengths)
        index, real = self._index[step][:, :width], self._real[step][:, :width]
        if not self._share_samples:
            return *self._gather_each(index, lengths), real

        def augmented(inputs: Tensor) -> Tensor:
            # As in serial training, each client's own generator augments its samples.
            of_rows = inputs.view(*index.shape, *inputs.shape[1:])
            for row, length, client in zip(of_rows, lengths, self._clients, strict=False):
                row[:length] = client.augmented(row[:length])
            return inputs

        first = self._clients[0]
        inputs, _ = first.samples.gather(index.flatten(), augmented if first.augment else None)
        return inputs.view(*index.shape, *inputs.shape[1:]), self._targets(index), real

    def _gather_each(self, index: Tensor, lengths: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Inputs and targets of A clients' samples at ``index`` [A, B], one client at a time."""
        batches = [
            client.gather(row[:length])
            for row, length, client in zip(index, lengths, self._clients, strict=False)
        ]
        inputs, targets = (
            torch.stack([_padded(values, index.shape[1]) for values in each])
            for each in zip(*batches, strict=True)
        )
        return inputs, targets

    def _targets(self, index: Tensor) -> Tensor:
        """Targets of A clients' B samples each, at the positions ``index`` [A, B]."""
        # Clients share the inputs, but faults may have flipped the labels of some clients.
        own = [client.samples.targets for client in self._clients[: len(index)]]
        if all(targets is own[0] for targets in own):
            return own[0][index]
        return torch.stack([targets[row] for targets, row in zip(own, index, strict=True)])


def _padded(values: Tensor, length: int) -> Tensor:
    """Pad ``values`` [B, ...] with copies of the first value to [``length``, ...]."""
    return torch.cat((values, values[:1].expand(length - len(values), *values.shape[1:])))
