import numpy as np
import pytest
from support.partition_checks import TEN_BY_100, assert_complete, equal

from fedexp.data.partitions.released import dirichlet_recut
from fedexp.data.split import class_counts
from fedexp.errors import InputError

CIFAR10 = np.repeat(np.arange(10), 5000)

# Clients x classes of the published recipe with seed 66, computed by other code.
SEED_66 = {
    0.2: """656 262 344 647 4 198 339 165 881 1504
            2314 0 0 0 0 0 916 5 1765 0
            462 2501 2037 0 0 0 0 0 0 0
            1205 434 466 7 0 54 13 640 575 1606
            252 429 4 3039 8 1268 0 0 0 0
            2 48 13 152 615 1680 58 1725 0 707
            108 0 0 0 583 639 0 2448 1222 0
            0 1162 0 648 0 1160 275 17 556 1182
            1 164 552 494 3789 0 0 0 0 0
            0 0 1584 13 1 1 3399 0 1 1""",
    0.05: """0 0 4519 0 0 481 0 0 0 0
             521 0 0 0 0 4479 0 0 0 0
             3334 208 0 587 0 0 20 0 851 0
             0 510 0 0 0 0 412 0 4078 0
             0 0 0 0 0 0 1005 0 67 3928
             192 1369 0 2372 0 0 0 0 0 1067
             119 2817 0 2040 0 24 0 0 0 0
             388 95 480 0 43 0 1346 2644 0 4
             266 0 0 0 2515 0 2216 0 3 0
             180 1 1 1 2442 16 1 2356 1 1""",
}


@pytest.mark.parametrize("beta", SEED_66)
def test_seed_66_has_its_known_counts(beta: float) -> None:
    clients = dirichlet_recut(CIFAR10, 10, beta, seed=0)
    expected = np.array(SEED_66[beta].split(), dtype=int).reshape(10, 10)
    assert np.array_equal(class_counts(CIFAR10, clients, 10), expected)
    assert_complete(clients, 50000, 10)


def by_loop(labels: list[int], clients: int, beta: float, seed: int) -> list[list[int]]:
    """The published recipe in lists; the last group has the remaining clients and samples."""
    generator = np.random.RandomState(seed)
    order = generator.permutation(len(labels)).tolist()
    part = int(10 / clients * len(labels))
    lists: list[list[int]] = []
    while len(lists) < clients:
        width = min(10, clients - len(lists))
        members = order[:part] if len(lists) + width < clients else order
        order = order[part:]
        fair = len(members) / width
        own: list[list[int]] = [[]]
        while len(own) != width or min(map(len, own)) < int(0.5 * fair):
            own = [[] for _ in range(width)]
            for label in range(10):
                left = [each for each in members if labels[each] == label]
                drawn = generator.dirichlet([beta] * width)
                shares = [0 if len(m) >= fair else s for m, s in zip(own, drawn, strict=True)]
                ends = (np.cumsum(np.array(shares) / sum(shares)) * len(left)).astype(int).tolist()
                ends[-1] = len(left)
                for mine, start, end in zip(own, [0, *ends[:-1]], ends, strict=True):
                    mine += left[start:end]
        lists += own
    row = [each for mine in lists for each in mine]
    whole, more = divmod(len(row), clients)
    return [sorted(row.pop(0) for _ in range(whole + (k < more))) for k in range(clients)]


@pytest.mark.parametrize("num_clients", [10, 20, 23])
def test_samples_are_those_of_a_plain_loop_also_in_a_smaller_last_group(num_clients: int) -> None:
    clients = dirichlet_recut(TEN_BY_100, num_clients, 0.5, seed=0, draw_seed=3)
    expected = by_loop(TEN_BY_100.tolist(), num_clients, 0.5, seed=3)
    assert [each.tolist() for each in clients] == expected


@pytest.mark.parametrize("num_clients", [1, 7, 10, 20, 23])
def test_all_clients_are_of_equal_size(num_clients: int) -> None:
    clients = dirichlet_recut(TEN_BY_100, num_clients, 0.5, seed=0)
    assert_complete(clients, 1000, num_clients)
    sizes = list(map(len, clients))
    assert max(sizes) - min(sizes) <= 1


def test_groups_share_consecutive_parts_of_the_shuffled_samples() -> None:
    clients = dirichlet_recut(TEN_BY_100, 4, 0.5, seed=0, draw_seed=5, group=2)
    shuffled = np.random.RandomState(5).permutation(1000)
    assert sorted(np.concatenate(clients[:2])) == sorted(shuffled[:500])


def test_draw_seed_null_takes_the_seed_of_the_run() -> None:
    own = dirichlet_recut(TEN_BY_100, 5, 0.5, seed=3, draw_seed=None)
    assert equal(own, dirichlet_recut(TEN_BY_100, 5, 0.5, seed=9, draw_seed=3))
    assert not equal(own, dirichlet_recut(TEN_BY_100, 5, 0.5, seed=3))


def test_out_of_tries_is_one_line() -> None:
    with pytest.raises(
        InputError,
        match=r"^partition.min_share=0.9 \(90 samples\): not reached in partition.max_tries=2 "
        r"draws with partition.beta=0.001 and a group of 10 clients; the smallest client had",
    ):
        dirichlet_recut(TEN_BY_100 % 7, 10, 0.001, seed=0, min_share=0.9, max_tries=2)
