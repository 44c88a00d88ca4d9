"""Partitions: who holds which training sample.

Each is a pure function of its arguments. It takes what it needs of ``labels`` [n] (the class of
each sample), ``users`` [n] (who each sample came from), ``num_clients`` N and ``seed``, and its own
options; it returns for each client its sorted int64 indices. Every sample goes to exactly one
client. A client may get none.
"""

import inspect
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated

import numpy as np
from pydantic import Field, NonNegativeInt, PositiveInt

from fedexp.config.build import Node, build
from fedexp.core.randomness import numpy_generator
from fedexp.data.partition_cache import cached_partition, fingerprint
from fedexp.data.split import apportion, by_owner, deal
from fedexp.errors import InputError

Concentration = Annotated[float, Field(gt=0, allow_inf_nan=False)]
"""Parameter of a symmetric Dirichlet: near 0 one client holds a whole class, large is even."""


SUPPLIED = ("labels", "users", "num_clients", "seed")
"""What a partition function may take from the run; the config sets its other arguments."""


def iid(labels: np.ndarray, num_clients: int, seed: int) -> list[np.ndarray]:
    """Deal the samples at random; client sizes differ by at most one."""
    owner = np.arange(len(labels)) % num_clients
    return by_owner(numpy_generator(seed, "partition").permutation(owner), num_clients)


def dirichlet(
    labels: np.ndarray,
    num_clients: int,
    beta: Concentration,
    seed: int,
    balance: bool = False,
    min_size: NonNegativeInt = 0,
    max_tries: PositiveInt = 100,
) -> list[np.ndarray]:
    """Spread each class over the clients in shares drawn from Dir(beta).

    Args:
        labels: [n] class of each sample.
        num_clients: N.
        beta: concentration.
        seed: decides shares and samples.
        balance: a client that already has at least n/N samples gets no share of later classes.
        min_size: draw again until every client has at least this many samples.
        max_tries: how often to draw at most.

    Raises:
        InputError: no draw gave every client ``min_size`` samples.
    """
    if min_size * num_clients > len(labels):
        raise InputError(
            f"partition.min_size={min_size}: {len(labels)} samples are too few "
            f"for clients.count={num_clients}"
        )
    generator = numpy_generator(seed, "partition")
    sizes = np.bincount(labels)
    best = 0
    for _ in range(max_tries):
        counts = _dirichlet_counts(sizes, num_clients, beta, balance, generator)
        smallest = counts.sum(axis=1).min()
        if smallest >= min_size:
            return deal(labels, counts, generator)
        best = max(best, smallest)
    raise InputError(
        f"partition.min_size={min_size}: not reached in partition.max_tries={max_tries} draws with "
        f"partition.beta={beta} and clients.count={num_clients}; the best had {best}"
    )


def shards(
    labels: np.ndarray, num_clients: int, classes_per_client: PositiveInt, seed: int
) -> list[np.ndarray]:
    """PxCy, pure class partition: each of x clients holds exactly y classes (FedGELA).

    Every class has floor or ceil of N*y/C holders, chosen at random, who share its samples evenly.

    Args:
        labels: [n] class of each sample.
        num_clients: N, the x of PxCy.
        classes_per_client: y.
        seed: decides who holds which classes and samples.

    Raises:
        InputError: y exceeds the number of classes, N*y is too small for every class to be held, or
            a class has fewer samples than holders.
    """
    generator = numpy_generator(seed, "partition")
    classes, sizes = np.unique(labels, return_counts=True)
    where = f"partition.classes_per_client={classes_per_client} with clients.count={num_clients}"
    if not classes_per_client <= len(classes) <= classes_per_client * num_clients:
        raise InputError(
            f"{where}: the data have {len(classes)} classes; a client cannot hold more, "
            f"and all clients together cannot hold fewer"
        )
    holds = np.zeros((num_clients, len(classes)), dtype=bool)
    holders = np.zeros(len(classes), dtype=np.int64)
    for client in range(num_clients):
        # Taking the classes with the fewest holders so far keeps them within one of each other.
        fewest = np.lexsort((generator.random(len(classes)), holders))[:classes_per_client]
        holds[client, fewest] = True
        holders[fewest] += 1
    for label, size, needed in zip(classes, sizes, holders, strict=True):
        if size < needed:
            raise InputError(f"{where}: class {label} has {size} samples for {needed} holders")
    return _share_evenly(labels, holds, generator)


def nid2(labels: np.ndarray, num_clients: int, seed: int) -> list[np.ndarray]:
    """Biased clients that split the classes among them, and one last client that has them all.

    FedSC's NID2 is 5 biased clients with C/5 classes each and 1 client with all classes.
    Generalised here to any N: the N - 1 biased clients hold the same number of classes or one more,
    disjoint while there are enough classes; with more biased clients than classes each holds one.
    The holders of a class share its samples evenly.

    Raises:
        InputError: there are fewer than two clients.
    """
    if num_clients < 2:
        raise InputError(f"clients.count={num_clients}: partition=nid2 needs at least 2")
    generator = numpy_generator(seed, "partition")
    num_classes, biased = len(np.unique(labels)), num_clients - 1
    slot = np.arange(max(num_classes, biased))
    holds = np.zeros((num_clients, num_classes), dtype=bool)
    holds[slot % biased, generator.permutation(num_classes)[slot % num_classes]] = True
    holds[-1] = True
    return _share_evenly(labels, holds, generator)


def multi_alpha(
    labels: np.ndarray,
    num_clients: int,
    alphas: Annotated[list[Concentration], Field(min_length=1)],
    seed: int,
) -> list[np.ndarray]:
    """Clients of several degrees of heterogeneity side by side (HiCS-FL).

    The samples are cut at random into one equal part for each alpha; part i is spread over the i-th
    block of consecutive clients by Dir(alpha_i). Parts and blocks differ in size by at most one.

    Args:
        labels: [n] class of each sample.
        num_clients: N.
        alphas: the concentration of each block.
        seed: decides parts, shares and samples.

    Raises:
        InputError: there are fewer clients than alphas.
    """
    if num_clients < len(alphas):
        raise InputError(
            f"partition.alphas={alphas}: at most clients.count={num_clients} values, "
            f"so that each has a client"
        )
    generator = numpy_generator(seed, "partition")
    parts = np.array_split(generator.permutation(len(labels)), len(alphas))
    blocks = np.array_split(np.arange(num_clients), len(alphas))
    clients = []
    for alpha, part, block in zip(alphas, parts, blocks, strict=True):
        sizes = np.bincount(labels[part])
        counts = _dirichlet_counts(sizes, len(block), alpha, False, generator)
        clients += [np.sort(part[index]) for index in deal(labels[part], counts, generator)]
    return clients


def natural(users: np.ndarray | None, num_clients: int, seed: int) -> list[np.ndarray]:
    """A client is a user; with more users than clients, they are dealt at random, evenly by number.

    Args:
        users: [n] who each sample came from.
        num_clients: N.
        seed: decides which users a client stands for.

    Raises:
        InputError: the dataset has no user ids, or fewer users than clients.
    """
    if users is None:
        raise InputError(
            "partition=natural: this dataset has no user ids; choose another partition"
        )
    names, user = np.unique(users, return_inverse=True)
    if num_clients > len(names):
        raise InputError(
            f"clients.count={num_clients}: partition=natural allows at most {len(names)}, "
            f"the number of users"
        )
    client = numpy_generator(seed, "partition").permutation(np.arange(len(names)) % num_clients)
    return by_owner(client[user], num_clients)


def long_tail(labels: np.ndarray, rho: Annotated[float, Field(ge=1)], seed: int) -> np.ndarray:
    """Thin the classes out to a long tail, before any partition (FedSC).

    Class j keeps n_max * rho^(-j/(C-1)) random samples, rounded down, at least one and at most all
    it has; n_max is the size of the largest class, and the classes stand in label order.

    Args:
        labels: [n] class of each sample.
        rho: imbalance ratio between the first and the last class.
        seed: decides which samples stay.

    Returns:
        The sorted indices of the samples that stay.
    """
    sizes = np.bincount(labels)
    classes = np.flatnonzero(sizes)
    exponents = np.arange(len(classes)) / max(len(classes) - 1, 1)
    # The power's rounding error must not turn 81 into 80.
    tail = np.floor(sizes.max() / rho**exponents + 1e-6).astype(np.int64)
    keep = np.zeros_like(sizes)
    keep[classes] = np.clip(tail, 1, sizes[classes])
    return deal(labels, keep[None, :], numpy_generator(seed, "long_tail"))[0]


def _dirichlet_counts(
    sizes: np.ndarray, num_clients: int, beta: float, balance: bool, generator: np.random.Generator
) -> np.ndarray:
    """[N, C] samples of each class for each client, from class sizes [C].

    Shares come from numpy's Dirichlet, not from normalised gammas: when beta is small, every gamma
    can underflow to zero and the shares to 0/0, so numpy breaks a stick there. Balancing draws over
    the open clients alone, which is the same as a Dirichlet over all, renormalised without the full
    ones. While samples are left somebody has fewer than n/N, so some client is open.
    """
    counts = np.zeros((num_clients, len(sizes)), dtype=np.int64)
    for label in np.flatnonzero(sizes):
        is_open = counts.sum(axis=1) * num_clients < sizes.sum()
        receivers = np.flatnonzero(is_open) if balance else np.arange(num_clients)
        shares = generator.dirichlet(np.full(len(receivers), beta))
        counts[receivers, label] = apportion(sizes[label], shares, generator)
    return counts


def _share_evenly(
    labels: np.ndarray, holds: np.ndarray, generator: np.random.Generator
) -> list[np.ndarray]:
    """Split each class evenly over its holders; ``holds`` [N, C] is over the classes present."""
    classes, sizes = np.unique(labels, return_counts=True)
    counts = np.zeros((len(holds), classes.max() + 1), dtype=np.int64)
    for label, size, holders in zip(classes, sizes, holds.T, strict=True):
        counts[:, label] = apportion(size, holders, generator)
    return deal(labels, counts, generator)


def partition_indices(
    node: Node,
    labels: np.ndarray,
    users: np.ndarray | None,
    num_clients: int,
    seed: int,
    cache: Path | None,
    long_tail: float | None,
) -> list[np.ndarray]:
    """Partition the training samples as the config says, or find what an earlier run has kept.

    Args:
        node: config node of the partition function.
        labels: [n] class of each sample.
        users: [n] who each sample came from, None if unknown.
        num_clients: N.
        seed: seed of the run.
        cache: results are kept below ``cache/partitions``; None keeps nothing.
        long_tail: imbalance ratio to which the classes are thinned out first, None for not at all.

    Returns:
        For each client, its sorted int64 indices into ``labels``.

    Raises:
        InputError: a wrong option, a partition that cannot be made, or no sample for anybody.
    """
    if not len(labels):
        raise InputError("data: the training split is empty, so no client would have data")
    function = build("partition", node, supplied=SUPPLIED)
    compute = partial(_partition, function, labels, users, num_clients, seed, long_tail)
    source = getattr(sys.modules[function.func.__module__], "__file__", None)
    if cache is None or source is None:  # a function typed into a notebook has no file to compare
        return compute()
    name = fingerprint(
        Path(source).read_bytes(),  # whoever edits the function must not be answered from before
        sorted(node.items()),
        labels,
        None if users is None else np.unique(users, return_inverse=True)[1],
        num_clients,
        seed,
        long_tail,
    )
    path = cache / "partitions" / f"{name}.npz"
    return cached_partition(path, len(labels), num_clients, compute)


def _partition(
    function: Callable[..., list[np.ndarray]],
    labels: np.ndarray,
    users: np.ndarray | None,
    num_clients: int,
    seed: int,
    rho: float | None,
) -> list[np.ndarray]:
    """Thin out the classes, partition what is kept, and map the indices back."""
    kept = np.arange(len(labels)) if rho is None else long_tail(labels, rho, seed)
    supplied = {
        "labels": labels[kept],
        "users": None if users is None else users[kept],
        "num_clients": num_clients,
        "seed": seed,
    }
    wanted = inspect.signature(function).parameters
    clients = function(**{name: supplied[name] for name in SUPPLIED if name in wanted})
    return [kept[index] for index in clients]
