import numpy as np
import pytest
from support.partition_checks import TEN_BY_100

from fedexp.data.partitions import long_tail


@pytest.mark.parametrize(
    ("sizes", "rho", "expected"),
    [
        # 100 * 100^(-j/2) = 100, 10, 1
        ([100, 100, 100], 100, [100, 10, 1]),
        # 243 * 243^(-j/5) = 243, 81, 27, 9, 3, 1
        ([243] * 6, 243, [243, 81, 27, 9, 3, 1]),
        # n_max is 90: 90, 30, 10; the first has only 50
        ([50, 90, 90], 9, [50, 30, 10]),
        # at least one
        ([4, 4, 4], 100, [4, 1, 1]),
        ([7, 5], 1, [7, 5]),
        ([7], 10, [7]),
        # absent classes do not count
        ([16, 0, 16, 16], 16, [16, 0, 4, 1]),
    ],
)
def test_long_tail_sizes(sizes: list[int], rho: float, expected: list[int]) -> None:
    labels = np.random.default_rng(0).permutation(np.repeat(np.arange(len(sizes)), sizes))
    kept = long_tail(labels, rho, seed=0)
    assert np.bincount(labels[kept], minlength=len(sizes)).tolist() == expected
    assert np.all(np.diff(kept) > 0)


def test_long_tail_of_cifar_has_its_known_sizes() -> None:
    labels = np.repeat(np.arange(10), 5000)
    sizes = np.bincount(labels[long_tail(labels, 100, seed=0)])
    assert sizes.tolist() == [5000, 2997, 1796, 1077, 645, 387, 232, 139, 83, 50]


@pytest.mark.parametrize(
    ("num_classes", "per_class", "totals"),
    [
        (10, 5000, [20431, 13996, 12406, 11203]),  # CIFAR-10
        (100, 500, [19573, 12608, 10847, 9502]),  # CIFAR-100
        (200, 500, [39072, 25082, 21549, 18836]),  # Tiny ImageNet
    ],
)
def test_long_tail_has_the_known_totals(
    num_classes: int, per_class: int, totals: list[int]
) -> None:
    labels = np.repeat(np.arange(num_classes), per_class)
    assert [len(long_tail(labels, rho, seed=0)) for rho in (10, 50, 100, 200)] == totals


def test_long_tail_keeps_other_samples_with_another_seed() -> None:
    assert np.array_equal(long_tail(TEN_BY_100, 10, 1), long_tail(TEN_BY_100, 10, 1))
    assert not np.array_equal(long_tail(TEN_BY_100, 10, 1), long_tail(TEN_BY_100, 10, 2))
