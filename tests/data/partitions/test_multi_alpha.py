import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from partition_checks import TEN_BY_100, assert_complete, label_arrays, quick

from fedexp.data.partitions import multi_alpha
from fedexp.data.split import class_counts


@quick
@given(
    labels=label_arrays,
    alphas=st.lists(st.sampled_from([1e-3, 0.5, 10.0]), min_size=1, max_size=4),
    num_clients=st.integers(4, 12),
    seed=st.integers(0, 2**31),
)
def test_multi_alpha_loses_nothing(
    labels: np.ndarray, alphas: list[float], num_clients: int, seed: int
) -> None:
    assert_complete(multi_alpha(labels, num_clients, alphas, seed), len(labels), num_clients)


def test_multi_alpha_blocks_are_equal_parts_of_different_skew() -> None:
    clients = multi_alpha(TEN_BY_100, 10, [0.001, 1000.0], seed=0)
    assert sum(map(len, clients[:5])) == sum(map(len, clients[5:])) == 500
    classes = (class_counts(TEN_BY_100, clients, 10) > 0).sum(axis=1)
    assert classes[:5].sum() <= 13  # ten classes, nearly each with one client of five
    assert classes[5:].tolist() == [10] * 5
