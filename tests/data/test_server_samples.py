"""The server's own samples."""

import torch
from support.federations import federate

from fedexp.data.server_samples import draw_samples

SMALL = ["clients.count=5", "clients.per_round=5", "data.subset=300"]


def test_it_is_a_draw_of_training_samples_without_replacement() -> None:
    data = federate(*SMALL, "data.validation=0.2").data
    held = torch.cat([client.train_index for client in data.clients])
    inputs, labels = draw_samples(data, "root", 40, balanced=False)
    assert len(inputs) == 40
    matches = (data.train.inputs[:, None] == inputs).flatten(2).all(dim=2)
    places = matches.float().argmax(dim=0)
    assert matches.any(dim=0).all()
    assert places.unique().numel() == 40
    assert set(places.tolist()) <= set(held.tolist())
    assert torch.equal(data.train.labels[places], labels)
    assert torch.equal(draw_samples(data, "root", 40, balanced=False)[1], labels)
    assert not torch.equal(draw_samples(data, "other", 40, balanced=False)[1], labels)
    assert len(draw_samples(data, "root", 10**6, balanced=True)[1]) == len(held)


def test_a_balanced_draw_has_the_same_number_of_each_class() -> None:
    data = federate(*SMALL, "partition.long_tail=10").data
    counts = draw_samples(data, "root", 34, balanced=True)[1].bincount(minlength=10)
    available = data.class_counts.sum(dim=0)
    assert counts.sum() == 34
    scarce = available < 3
    assert torch.equal(counts[scarce], available[scarce])
    assert counts[~scarce].min() >= 3
    assert counts.max() - counts[~scarce].min() <= 1
    uneven = draw_samples(data, "root", 34, balanced=False)[1].bincount(minlength=10)
    assert uneven.max() > 6
