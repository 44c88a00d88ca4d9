"""The batches of a stack are those of its clients."""

import torch
from torch import Generator

from fedexp.core.last_batch import KEEP
from fedexp.data.appended import AppendedBatches
from fedexp.data.batches import LocalBatches
from fedexp.data.dataset import Split
from fedexp.data.samples import Samples
from fedexp.engines.stacked_batches import StackedBatches


def own_samples(client: int, size: int) -> LocalBatches:
    """Batches of two of a client that has samples of its own."""
    inputs, labels = torch.arange(size).view(-1, 1) + 100.0 * client, torch.arange(size)
    samples = Samples(Split(inputs, labels), (), (), torch.device("cpu"))
    order, draws = (Generator().manual_seed(2 * client + each) for each in (0, 1))
    return LocalBatches(samples, labels, KEEP.lengths(size, 2), None, order, draws)


def clients() -> list[LocalBatches]:
    """Two clients with three batches, and one with one batch that has an appended sample."""
    few = own_samples(2, 2)
    more = AppendedBatches(few, torch.tensor([[-1.0]]), torch.tensor([7]), Generator())
    return [own_samples(0, 6), own_samples(1, 6), more]


def test_each_client_has_its_own_samples_after_a_client_with_appended_ones_has_finished() -> None:
    alone, stacked = [list(each) for each in clients()], StackedBatches(clients(), [3, 3, 1])
    for step in range(3):
        inputs, targets, real = stacked.batch(step)
        assert len(inputs) == stacked.rows(step)
        for row, batches in zip(range(len(inputs)), alone, strict=False):
            x, y = batches[step]
            taken = real[row].bool()
            assert torch.equal(inputs[row, taken], x)
            assert torch.equal(targets[row, taken], y)
