import numpy as np
import pytest
from support.partition_checks import assert_complete, equal

from fedexp.data.partitions.released import dirichlet_fednh
from fedexp.data.split import class_counts
from fedexp.errors import InputError

CIFAR10 = np.tile(np.arange(10), 5000)
CIFAR100 = np.tile(np.arange(100), 500)


def recipe(labels: np.ndarray, num_clients: int, beta: float, seed: int) -> list[np.ndarray]:
    """The published steps, list by list."""
    generator = np.random.RandomState(seed)
    generator.permutation(len(labels))
    for _ in range(3):
        clients: list[list[np.ndarray]] = [[] for _ in range(num_clients)]
        size, held = [0] * num_clients, [0] * num_clients
        for position, label in enumerate(sorted(set(labels.tolist()))):
            samples = np.flatnonzero(labels == label)
            generator.shuffle(samples)
            shares = generator.dirichlet(np.repeat(beta, num_clients))
            for client in range(num_clients):
                if size[client] >= len(labels) / num_clients:
                    shares[client] = 0
            shares /= shares.sum()
            cuts = (np.cumsum(shares) * len(samples)).astype(int)[:-1]
            chunks = np.split(samples, cuts)
            if position >= 2:
                low = [client for client in range(num_clients) if held[client] <= 1]
                for i, client in enumerate(low, start=1):
                    last = num_clients - i
                    chunks[client], chunks[last] = chunks[last], chunks[client]
            for client, chunk in enumerate(chunks):
                clients[client].append(chunk)
                size[client] += len(chunk)
                held[client] += len(chunk) > 0
        if min(size) >= 10 and min(held) >= 2:
            break
    return [np.sort(np.concatenate(chunks)) for chunks in clients]


@pytest.mark.parametrize(
    ("labels", "num_clients", "beta", "seed"),
    [
        (CIFAR10, 100, 0.3, 0),
        (CIFAR10[:2000], 20, 0.3, 1),
        (np.random.default_rng(0).integers(0, 7, 900), 12, 0.1, 2),  # three draws, the last kept
        (np.tile(np.arange(3), 40), 2, 0.5, 3),
    ],
)
def test_equals_the_recipe(labels: np.ndarray, num_clients: int, beta: float, seed: int) -> None:
    clients = dirichlet_fednh(labels, num_clients, beta, seed)
    assert equal(clients, recipe(labels, num_clients, beta, seed))
    assert_complete(clients, len(labels), num_clients)


def test_cifar10_at_seed_0_has_its_known_counts() -> None:
    clients = dirichlet_fednh(CIFAR10, 100, 0.3, 0)
    sizes, counts = list(map(len, clients)), class_counts(CIFAR10, clients, 10)
    assert sizes[:5] == [234, 798, 524, 673, 319]
    assert (min(sizes), np.median(sizes), max(sizes)) == (45, 523, 1168)
    classes = (counts > 0).sum(axis=1)
    assert (classes.min(), classes.max(), round(classes.mean(), 1)) == (2, 10, 7.1)
    assert counts[0].tolist() == [76, 0, 30, 49, 0, 7, 0, 0, 1, 71]


@pytest.mark.parametrize(
    ("labels", "beta", "smallest", "largest", "mean_classes"),
    [
        (CIFAR10, 1.0, 208, 745, 9.1),
        (CIFAR100, 0.3, 349, 621, 58.5),
        (CIFAR100, 1.0, 358, 537, 87.7),
    ],
)
def test_other_settings_have_their_known_sizes(
    labels: np.ndarray, beta: float, smallest: int, largest: int, mean_classes: float
) -> None:
    clients = dirichlet_fednh(labels, 100, beta, 0)
    sizes = list(map(len, clients))
    assert (min(sizes), max(sizes)) == (smallest, largest)
    held = (class_counts(labels, clients, labels.max() + 1) > 0).sum(axis=1)
    assert round(held.mean(), 1) == mean_classes


def test_a_seed_that_the_legacy_generator_cannot_take_is_one_line() -> None:
    with pytest.raises(InputError, match=r"^seed=4294967296: .* below 4294967296$"):
        dirichlet_fednh(CIFAR10, 10, 0.3, 2**32)
