import torch
from torch import Generator

from fedexp.core.last_batch import KEEP
from fedexp.data.batches import LocalBatches, joined
from fedexp.data.dataset import Split
from fedexp.data.samples import Samples


def local_batches(inputs: torch.Tensor, index: list[int], seed: int = 0) -> LocalBatches:
    samples = Samples(Split(inputs, torch.arange(len(inputs))), (), (), torch.device("cpu"))
    order, draws = (Generator().manual_seed(seed + each) for each in (0, 1))
    lengths = KEEP.lengths(len(index), 2)
    return LocalBatches(samples, torch.tensor(index), lengths, None, order, draws)


def test_an_epoch_is_every_sample_once_with_the_short_batch_kept() -> None:
    batches = local_batches(torch.rand(7, 3), [0, 1, 3, 4, 6])
    assert len(batches) == 3
    epochs = [[labels for _, labels in batches] for _ in range(2)]
    assert [len(labels) for labels in epochs[0]] == [2, 2, 1]
    for epoch in epochs:
        assert sorted(torch.cat(epoch).tolist()) == [0, 1, 3, 4, 6]


def test_batches_of_clients_without_shared_samples_are_the_same_when_joined() -> None:
    inputs = [torch.rand(size, 3) for size in (4, 7, 2)]

    def clients() -> list[LocalBatches]:
        return [local_batches(own, [*range(1, len(own))], seed) for seed, own in enumerate(inputs)]

    alone, together = clients(), joined(clients())
    for _ in range(2):  # epochs
        for one, other in zip(alone, together, strict=True):
            for (x, y), chunk in zip(one, other.chunks(), strict=True):
                found, labels = together[0].samples.gather(chunk)
                assert torch.equal(found, x)
                assert torch.equal(labels, y)


def test_batches_of_clients_that_share_samples_are_joined_as_they_are() -> None:
    one, other = local_batches(torch.rand(4, 3), [0, 1]), local_batches(torch.rand(4, 3), [2, 3])
    other.samples = one.samples
    clients = [one, other]
    assert joined(clients) is clients
