import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.partition_checks import TEN_BY_100, assert_complete, quick

from fedexp.data.partitions import shards
from fedexp.data.split import class_counts
from fedexp.errors import InputError


@quick
@given(
    num_classes=st.integers(1, 8),
    num_clients=st.integers(1, 15),
    per_client=st.integers(1, 8),
    seed=st.integers(0, 2**31),
)
def test_shards_hold_their_classes_exactly(
    num_classes: int, num_clients: int, per_client: int, seed: int
) -> None:
    labels = np.tile(np.arange(num_classes), 16)
    if not per_client <= num_classes <= per_client * num_clients:
        with pytest.raises(InputError, match=f"the data have {num_classes} classes"):
            shards(labels, num_clients, per_client, seed)
        return
    clients = shards(labels, num_clients, per_client, seed)
    assert_complete(clients, len(labels), num_clients)
    counts = class_counts(labels, clients, num_classes)
    assert np.all((counts > 0).sum(axis=1) == per_client)
    holders = (counts > 0).sum(axis=0)
    assert holders.min() >= 1
    assert holders.max() - holders.min() <= 1
    for label in range(num_classes):
        held = counts[counts[:, label] > 0, label]
        assert held.max() - held.min() <= 1


def test_shards_p10c2_gives_each_client_two_halves() -> None:
    counts = class_counts(TEN_BY_100, shards(TEN_BY_100, 10, 2, seed=0), 10)
    assert [sorted(row[row > 0]) for row in counts] == [[50, 50]] * 10
    assert np.all((counts > 0).sum(axis=0) == 2)


def test_random_holders_are_those_of_the_released_code() -> None:
    """Seed 0, P10C2: two to four places of a class differ, so client sizes do."""
    counts = class_counts(TEN_BY_100, shards(TEN_BY_100, 10, 2, seed=0, holders="random"), 10)
    held = [np.flatnonzero(row).tolist() for row in counts]
    assert held[:5] == [[0, 1], [2, 3], [4, 5], [6, 7], [8, 9]]
    assert held[5:] == [[0, 6], [4, 8], [6, 7], [4, 7], [5, 9]]
    assert (counts > 0).sum(axis=0).tolist() == [2, 1, 1, 1, 3, 2, 3, 3, 2, 2]
    # Client 0 has half of class 0 and all of class 1.
    assert counts[0, :2].tolist() == [50, 100]


@quick
@given(
    num_classes=st.integers(1, 8),
    num_clients=st.integers(8, 15),
    per_client=st.integers(1, 8),
    seed=st.integers(0, 2**31),
)
def test_random_holders_have_their_number_of_classes(
    num_classes: int, num_clients: int, per_client: int, seed: int
) -> None:
    per_client = min(per_client, num_classes)
    labels = np.tile(np.arange(num_classes), 16)
    clients = shards(labels, num_clients, per_client, seed, holders="random")
    assert_complete(clients, len(labels), num_clients)
    held = class_counts(labels, clients, num_classes) > 0
    assert held.any(axis=0).all()
    assert np.all(held.sum(axis=1) == per_client)
