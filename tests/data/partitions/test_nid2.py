import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from support.partition_checks import TEN_BY_100, assert_complete, quick

from fedexp.data.partitions import nid2
from fedexp.data.split import class_counts


@quick
@given(num_classes=st.integers(1, 12), num_clients=st.integers(2, 20), seed=st.integers(0, 2**31))
def test_nid2_has_one_client_with_all_classes(
    num_classes: int, num_clients: int, seed: int
) -> None:
    labels = np.tile(np.arange(num_classes), 30)
    clients = nid2(labels, num_clients, seed)
    assert_complete(clients, len(labels), num_clients)
    held = class_counts(labels, clients, num_classes) > 0
    assert held[-1].all()
    assert held[:-1].any(axis=0).all()
    per_biased = held[:-1].sum(axis=1)
    assert per_biased.max() - per_biased.min() <= 1


def test_nid2_as_published_has_five_biased_clients_and_one_of_all() -> None:
    counts = class_counts(TEN_BY_100, nid2(TEN_BY_100, 6, seed=0), 10)
    assert [sorted(row[row > 0]) for row in counts[:5]] == [[50, 50]] * 5
    assert counts[5].tolist() == [50] * 10


def test_nid2_with_more_biased_clients_than_classes_gives_each_one_class() -> None:
    labels = np.repeat([0, 1], 12)
    counts = class_counts(labels, nid2(labels, 5, seed=0), 2)
    # Each class has two biased holders and the last client: 12 / 3 = 4 samples each.
    assert sorted(map(tuple, counts[:4])) == [(0, 4), (0, 4), (4, 0), (4, 0)]
    assert counts[4].tolist() == [4, 4]


def test_equal_sizes_gives_all_six_clients_a_sixth() -> None:
    """The last client has a sixth of each class, each biased one the rest of its two classes."""
    labels = np.tile(np.arange(10), 600)
    counts = class_counts(labels, nid2(labels, 6, seed=0, sharing="equal_sizes"), 10)
    assert counts.sum(axis=1).tolist() == [1000] * 6
    assert counts[5].tolist() == [100] * 10
    assert [sorted(row[row > 0]) for row in counts[:5]] == [[500, 500]] * 5


def test_equal_sizes_with_several_biased_holders_of_a_class() -> None:
    labels = np.repeat([0, 1], 50)
    counts = class_counts(labels, nid2(labels, 5, seed=0, sharing="equal_sizes"), 2)
    assert counts[4].tolist() == [10, 10]
    assert sorted(map(tuple, counts[:4])) == [(0, 20), (0, 20), (20, 0), (20, 0)]
