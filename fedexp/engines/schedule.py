"""Which samples every client of a stack takes in which step."""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from fedexp.data.federated import LocalBatches


class Schedule:
    """The steps of several clients side by side.

    Args:
        clients: each one's batches, those with the most steps first.
        epochs: how often each client passes over its data.

    Attributes:
        steps: how many steps each client takes.
    """

    def __init__(self, clients: Sequence[LocalBatches], epochs: int) -> None:
        self._clients = clients
        self._chunks = [
            [chunk for _ in range(epochs) for chunk in client.chunks()] for client in clients
        ]
        self.steps = [len(chunks) for chunks in self._chunks]

    def __len__(self) -> int:
        """The most steps that a client takes."""
        return max(self.steps)

    def rows(self, step: int) -> int:
        """How many clients take this step: the first so many."""
        return sum(steps > step for steps in self.steps)

    def batch(self, step: int) -> tuple[Tensor, Tensor, Tensor]:
        """Inputs [A, B, ...], labels [A, B] and ``Forward.real`` [A, B] of the first A clients.

        Shorter batches are filled up with copies of their first sample.
        """
        chunks = [chunks[step] for chunks in self._chunks[: self.rows(step)]]
        real = pad_sequence([torch.ones_like(chunk) for chunk in chunks], batch_first=True)
        index = _fill(chunks, real)
        # All have the same inputs, but not all the same labels: some may be flipped on purpose.
        own = zip(chunks, self._clients, strict=False)
        labels = _fill([client.samples.labels[chunk] for chunk, client in own], real)

        def augmented(inputs: Tensor) -> Tensor:
            # Each client draws for its own samples alone, as it does by itself.
            of_rows = inputs.view(*index.shape, *inputs.shape[1:])
            for row, chunk, client in zip(of_rows, chunks, self._clients, strict=False):
                row[: len(chunk)] = client.augmented(row[: len(chunk)])
            return inputs

        first = self._clients[0]
        inputs, _ = first.samples.gather(index.flatten(), augmented if first.augment else None)
        return inputs.view(*index.shape, *inputs.shape[1:]), labels, real.float()


def _fill(rows: Sequence[Tensor], real: Tensor) -> Tensor:
    """The rows side by side, [A, B], shorter ones filled up with their first value."""
    padded = pad_sequence(list(rows), batch_first=True)
    return torch.where(real > 0, padded, padded[:, :1])
