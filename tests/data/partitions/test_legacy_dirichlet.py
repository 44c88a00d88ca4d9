import numpy as np
import pytest
from support.partition_checks import assert_complete

from fedexp.data.partitions.released import legacy_dirichlet
from fedexp.data.split import class_counts
from fedexp.errors import InputError

# Labels interleaved: which samples a class has does not change the counts.
FASHION_MNIST = np.tile(np.arange(10), 6000)
CIFAR10 = np.tile(np.arange(10), 5000)
CIFAR100 = np.tile(np.arange(100), 500)
TINY_IMAGENET = np.tile(np.arange(200), 500)

# FedPTR, Table 11, all Dir(0.01): (labels, min_size, published sizes).
TABLE_11 = {
    "fashion_mnist": (
        FASHION_MNIST,
        2500,
        "12032 4244 6003 6037 6002 6165 5963 5760 2602 5192",
    ),
    "cifar10": (CIFAR10, 2500, "2972 9419 2936 5779 4111 5003 4949 4979 5615 4237"),
    "cifar100": (CIFAR100, 2500, "2690 5209 4764 6463 4467 5679 3983 5910 5497 5338"),
    "cifar100 of 40": (
        CIFAR100,
        500,
        "735 1371 1365 761 1123 2194 2399 531 848 1549 2378 569 2007 984 "
        "518 608 1250 780 2601 2784 1408 1831 1108 2166 523 814 1281 579 "
        "1067 1172 803 1085 902 2603 1237 940 588 683 1246 609",
    ),
    "cifar10 of 40": (
        CIFAR10,
        0,
        "0 3133 0 274 373 0 296 1709 1114 4636 5287 0 1469 1684 0 415 3 3950 718 46 "
        "3355 29 7318 1033 0 0 918 0 1342 0 1 0 4979 101 1397 1615 5 2798 2 0",
    ),
}

# Computed once from the same recipe by other code, not published.
RECIPE = {
    "fashion_mnist .04": (
        *(FASHION_MNIST, 10, 0.04, 2500),
        "6767 9455 3435 5129 3763 5003 8384 9043 4713 4308",
    ),
    "cifar10 .04": (
        *(CIFAR10, 10, 0.04, 2500),
        "5638 7878 2863 4274 3138 4169 6987 7535 3928 3590",
    ),
    "cifar100 .04": (
        *(CIFAR100, 10, 0.04, 2500),
        "5177 4113 5406 5005 5793 4826 5434 5026 3931 5289",
    ),
    "cifar100 of 40 .04": (*(CIFAR100, 40, 0.04, 500), "1286 756 1288 1275 732 1103 749 1000"),
    "tiny_imagenet": (
        *(TINY_IMAGENET, 10, 0.01, 2500),
        "7460 9583 8892 11421 10840 10466 9040 11189 9774 11335",
    ),
    "fashion_mnist of 40 .04": (*(FASHION_MNIST, 40, 0.04, 25), "75 316 319 1206"),
    "cifar10 of 40 .04": (*(CIFAR10, 40, 0.04, 25), "864 653 1094 510"),
}


@pytest.mark.parametrize(("labels", "min_size", "published"), TABLE_11.values(), ids=TABLE_11)
def test_sizes_are_the_published_ones(labels: np.ndarray, min_size: int, published: str) -> None:
    sizes = list(map(int, published.split()))
    clients = legacy_dirichlet(labels, len(sizes), 0.01, min_size=min_size)
    assert list(map(len, clients)) == sizes
    assert_complete(clients, len(labels), len(sizes))


@pytest.mark.parametrize(
    ("labels", "num_clients", "beta", "min_size", "expected"), RECIPE.values(), ids=RECIPE
)
def test_other_sizes_of_the_recipe(
    labels: np.ndarray, num_clients: int, beta: float, min_size: int, expected: str
) -> None:
    clients = legacy_dirichlet(labels, num_clients, beta, min_size=min_size)
    first = list(map(int, expected.split()))
    assert list(map(len, clients))[: len(first)] == first


def test_classes_of_clients_are_the_published_ones() -> None:
    counts = class_counts(FASHION_MNIST, legacy_dirichlet(FASHION_MNIST, 10, 0.01), 10)
    assert (counts > 0).sum(axis=1).tolist() == [3, 3, 2, 3, 3, 3, 2, 2, 2, 1]
    counts = class_counts(CIFAR10, legacy_dirichlet(CIFAR10, 10, 0.01), 10)
    assert (counts > 0).sum(axis=1).tolist() == [2, 2, 1, 7, 6, 3, 3, 2, 4, 1]
    assert counts[2, 5] == 2936
    assert counts[9, 2] == 4237


@pytest.mark.parametrize(("max_tries", "accepted"), [(107, False), (108, True)])
def test_fashion_mnist_is_accepted_at_try_108(max_tries: int, accepted: bool) -> None:
    if accepted:
        legacy_dirichlet(FASHION_MNIST, 10, 0.01, max_tries=max_tries)
        return
    with pytest.raises(
        InputError,
        match=r"^partition.min_size=2500: not reached in partition.max_tries=107 draws with "
        r"partition.beta=0.01 and clients.count=10; the smallest client had at most \d+ samples$",
    ):
        legacy_dirichlet(FASHION_MNIST, 10, 0.01, max_tries=max_tries)


def test_samples_are_given_out_in_dataset_order() -> None:
    labels = np.random.default_rng(0).permutation(np.repeat(np.arange(4), 50))
    clients = legacy_dirichlet(labels, 5, 1.0, draw_seed=3, min_size=1)
    for label in range(4):
        in_turn = np.concatenate([index[labels[index] == label] for index in clients])
        assert in_turn.tolist() == np.flatnonzero(labels == label).tolist()


def test_draw_seed_decides_the_shares() -> None:
    labels = np.tile(np.arange(10), 100)
    sizes = {
        seed: list(map(len, legacy_dirichlet(labels, 5, 1.0, draw_seed=seed, min_size=0)))
        for seed in (0, 1)
    }
    assert sizes[0] != sizes[1]


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (np.repeat([0, 1], [3, 4]), r"classes must be of equal size; here they have 3 to 4 samp"),
        (np.repeat([0, 1], 50), r"^partition.min_size=2500: 100 samples are too few"),
    ],
)
def test_what_cannot_work_is_one_line(labels: np.ndarray, message: str) -> None:
    with pytest.raises(InputError, match=message):
        legacy_dirichlet(labels, 10, 0.01)
