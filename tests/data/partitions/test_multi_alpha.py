from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.partition_checks import TEN_BY_100, assert_complete, label_arrays, quick

from fedexp.data.partitions import multi_alpha
from fedexp.data.split import class_counts
from fedexp.errors import InputError


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


PUBLISHED: dict[str, Any] = {"parts": "class_balanced", "balance": True, "min_share": 0.2}


def block_statistics(counts: np.ndarray, blocks: int) -> tuple[np.ndarray, np.ndarray]:
    """Mean label entropy [blocks] and mean number of classes [blocks] of the clients of a block."""
    shares = counts / counts.sum(axis=1, keepdims=True)
    entropy = -np.where(shares > 0, shares * np.log(np.where(shares > 0, shares, 1)), 0).sum(axis=1)
    held = (counts > 0).sum(axis=1)
    return entropy.reshape(blocks, -1).mean(axis=1), held.reshape(blocks, -1).mean(axis=1)


@pytest.mark.parametrize(
    ("per_class", "alphas", "entropies"),
    [
        # Known mean entropies of the released rule, block by block (CIFAR-10, settings 1 to 3).
        (5000, [0.001, 0.01, 0.1, 0.5, 1.0], [0.00, 0.11, 1.03, 1.71, 1.75]),
        (5000, [0.001, 0.002, 0.005, 0.01, 0.5], [0.00, 0.00, 0.00, 0.07, 1.71]),
        (5000, [0.001, 0.002, 0.005, 0.01, 0.1], [0.00, 0.00, 0.00, 0.07, 1.07]),
        # Fashion-MNIST, settings 1 to 3.
        (6000, [0.001, 0.002, 0.005, 0.01, 0.5], [0.00, 0.00, 0.00, 0.16, 1.73]),
        (6000, [0.001, 0.002, 0.005, 0.01, 0.2], [0.00, 0.00, 0.00, 0.16, 0.81]),
        (6000, [0.001] * 5, [0.00] * 5),
    ],
)
def test_the_published_rule_leaves_no_client_empty(
    per_class: int, alphas: list[float], entropies: list[float]
) -> None:
    labels, fair, found = np.repeat(np.arange(10), per_class), per_class // 5, []
    for seed in range(3):
        clients = multi_alpha(labels, 50, alphas, seed, **PUBLISHED)
        assert_complete(clients, len(labels), 50)
        counts = class_counts(labels, clients, 10)
        assert counts.sum(axis=1).min() >= 0.2 * fair
        assert counts.sum(axis=1).max() <= 2 * fair  # 1,851 of 1,000 is the largest known
        for block in range(5):  # every part has a fifth of each class
            assert np.all(counts[10 * block : 10 * block + 10].sum(axis=0) == fair)
        found.append(block_statistics(counts, 5)[0])
    # Over the seeds a block's entropy has a standard deviation of up to 0.13; one draw is known.
    tolerance = np.where(np.array(alphas) > 0.01, 0.3, 0.15)
    assert np.all(np.abs(np.mean(found, axis=0) - entropies) < tolerance)
    for alpha, largest in zip(alphas, np.max(found, axis=0), strict=True):
        assert largest < 0.2 or alpha > 0.005  # most have one class


@pytest.mark.parametrize(
    ("alphas", "entropies"),
    [
        # Known mean entropies of the released rule (CIFAR-100, settings 1 and 2).
        ([0.001, 0.01, 0.1, 0.5, 1.0], [1.62, 1.88, 2.80, 3.82, 4.12]),
        ([0.001, 0.005, 0.01, 0.1, 1.0], [1.62, 1.71, 1.88, 2.88, 4.14]),
    ],
)
def test_the_published_rule_on_cifar100(alphas: list[float], entropies: list[float]) -> None:
    labels = np.repeat(np.arange(100), 500)
    clients = multi_alpha(labels, 100, alphas, 0, **PUBLISHED)
    counts = class_counts(labels, clients, 100)
    assert counts.sum(axis=1).min() >= 100
    assert counts.sum(axis=1).max() <= 2 * 500
    found, held = block_statistics(counts, 5)
    assert found == pytest.approx(entropies, abs=0.2)
    assert 3 <= held[0] <= 12


def test_setting_2_of_cifar100_stays_as_it_is() -> None:
    labels = np.repeat(np.arange(100), 500)
    clients = multi_alpha(labels, 100, [0.001, 0.005, 0.01, 0.1, 1.0], 0, **PUBLISHED)
    counts = class_counts(labels, clients, 100)
    sizes = counts.sum(axis=1)
    assert (sizes.min(), sizes.max()) == (233, 599)
    found, _ = block_statistics(counts, 5)
    assert found == pytest.approx([1.61, 1.71, 1.87, 2.82, 4.13], abs=0.005)


def test_class_balanced_parts_share_remainders() -> None:
    labels = np.repeat([0, 1, 2], [10, 11, 1])
    clients = multi_alpha(labels, 4, [1.0, 1.0, 1.0, 1.0], 0, parts="class_balanced")
    counts = class_counts(labels, clients, 3)
    assert set(counts[:, 0]) == {2, 3}
    assert set(counts[:, 1]) == {2, 3}
    assert sorted(counts[:, 2]) == [0, 0, 0, 1]


def test_out_of_tries_names_alpha_and_block() -> None:
    labels = np.repeat(np.arange(10), 50)
    with pytest.raises(
        InputError,
        match=r"^partition.min_share=0.2 \(2 samples\): not reached in partition.max_tries=3 "
        r"draws with alpha=0.001 of partition.alphas and a block of 50 clients; "
        r"the smallest client had at most 0 samples$",
    ):
        multi_alpha(labels, 50, [0.001], 0, **PUBLISHED, max_tries=3)
