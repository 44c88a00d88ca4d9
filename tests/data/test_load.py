from functools import partial

import numpy as np
import pytest
import torch
from support import federations

from fedexp.data.federated import FederatedData
from fedexp.errors import InputError

PARTITIONS = ["iid", "dirichlet", "shards", "nid2", "multi_alpha"]
load = partial(federations.load, "clients.count=8", "clients.per_round=2")


def joined(data: FederatedData, name: str) -> list[int]:
    return sorted(torch.cat([getattr(client, name) for client in data.clients]).tolist())


@pytest.mark.parametrize("partition", PARTITIONS)
def test_train_validation_and_test_are_disjoint_and_complete(partition: str) -> None:
    plain, split = (load(f"partition={partition}", f"data.validation={v}") for v in (0.0, 0.2))
    assert joined(plain, "validation_index") == []
    assert joined(plain, "train_index") == list(range(1437))
    both = joined(split, "train_index") + joined(split, "validation_index")
    assert sorted(both) == list(range(1437))
    assert joined(split, "test_index") == joined(plain, "test_index") == list(range(360))
    for before, after in zip(plain.clients, split.clients, strict=True):
        rejoined = torch.cat([after.train_index, after.validation_index]).sort().values
        assert torch.equal(rejoined, before.train_index)
        assert torch.equal(after.test_index, before.test_index)
        held = split.train.labels[after.validation_index].bincount(minlength=10)
        assert torch.equal(after.class_counts + held, before.class_counts)
        # A fifth of each class, within one, and never the last sample of a class.
        assert ((held - 0.2 * before.class_counts).abs() < 1).all() or len(before.train_index) < 50
        assert torch.equal(after.class_counts > 0, before.class_counts > 0)
    assert 0.15 * 1437 < len(split.validation) <= 0.2 * 1437


def test_test_samples_of_a_class_follow_the_training_samples_of_the_class() -> None:
    """With a long tail, a client's test split has other shares of the classes than its training."""
    data = load("partition=iid", "partition.long_tail=100")
    of_class, tests = data.class_counts.sum(dim=0), data.test.labels.bincount(minlength=10)
    for client in data.clients:
        found = data.test.labels[client.test_index].bincount(minlength=10)
        assert ((found - tests * client.class_counts / of_class).abs() < 1).all()
    assert tests[-1] / tests.sum() > 5 * of_class[-1] / of_class.sum()


def test_validation_follows_the_seed_of_the_run() -> None:
    first, again, other = (
        load("data.validation=0.1", f"seed={seed}", "partition=iid") for seed in (0, 0, 1)
    )
    assert torch.equal(first.validation.index, again.validation.index)
    assert not np.array_equal(joined(first, "validation_index"), joined(other, "validation_index"))


def test_validation_composes_with_subset_and_long_tail() -> None:
    data = load("data.validation=0.25", "data.subset=400", "partition.long_tail=4")
    used = joined(data, "train_index") + joined(data, "validation_index")
    assert len(used) == len(set(used)) < 400
    assert max(used) < 400


def test_a_share_that_holds_out_nothing_is_one_line() -> None:
    with pytest.raises(InputError, match=r"^data.validation=0.0001: no client has enough samples"):
        load("data.validation=0.0001")


@pytest.mark.parametrize("value", ["1", "-0.1", "1.5"])
def test_validation_is_a_share_below_one(value: str) -> None:
    with pytest.raises(InputError, match=rf"^data.validation={value}"):
        load(f"data.validation={value}")
