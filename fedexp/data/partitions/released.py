"""The partitions of the papers' released code, drawn from numpy's legacy random generator.

This generator draws the same numbers in every version of numpy.
"""

from functools import partial
from typing import Annotated

import numpy as np
from pydantic import Field, NonNegativeInt, PositiveInt

from fedexp.config.schema import ShareBelowOne
from fedexp.data.partitions.shares import Concentration, check_min_size, draw_until
from fedexp.data.split import by_owner, deal_in_order
from fedexp.errors import InputError

LegacySeed = Annotated[int, Field(ge=0, lt=2**32)]
"""A seed of numpy's legacy generator."""

DRAWS = 3
MIN_SIZE, MIN_CLASSES = 10, 2


def dirichlet_fednh(
    labels: np.ndarray, num_clients: int, beta: Concentration, seed: int
) -> list[np.ndarray]:
    """The partition of FedNH's released code (Dai et al., AAAI 2023), bit for bit.

    In label order, each class is spread over the clients in shares from Dirichlet(beta). A client
    that already has n/N samples gets no more. From the third class on, the i-th client (i = 1, 2,
    ...) with at most one class so far swaps its samples of the current class with client N-i, where
    clients are numbered from 0. A draw is accepted if every client has at least 10 samples and 2
    classes. The third draw is always accepted, so a client may have fewer samples, or none.

    Args:
        labels: [n] class of each sample.
        num_clients: N.
        beta: concentration.
        seed: the seed of numpy's legacy generator, below 2**32.

    Raises:
        InputError: the seed is too large.
    """
    generator = _generator(seed)
    generator.permutation(len(labels))  # the released code makes this draw without using it
    for _ in range(DRAWS):
        owner, held = _fednh_draw(labels, num_clients, beta, generator)
        sizes = np.bincount(owner, minlength=num_clients)
        if sizes.min() >= MIN_SIZE and held.min() >= MIN_CLASSES:
            break
    return by_owner(owner, num_clients)


def _fednh_draw(
    labels: np.ndarray, num_clients: int, beta: float, generator: np.random.RandomState
) -> tuple[np.ndarray, np.ndarray]:
    """The client of each sample [n], and the number of classes of each client [N]."""
    owner = np.empty(len(labels), dtype=np.int64)
    sizes, held = (np.zeros(num_clients, dtype=np.int64) for _ in range(2))
    for position, label in enumerate(np.unique(labels)):
        index = np.flatnonzero(labels == label)
        generator.shuffle(index)
        limit = len(labels) / num_clients
        counts = _cut(len(index), _balanced_shares(sizes, limit, beta, generator))
        pieces = np.split(index, np.cumsum(counts)[:-1])
        if position >= 2:
            for place, client in enumerate(np.flatnonzero(held <= 1).tolist(), start=1):
                pieces[client], pieces[-place] = pieces[-place], pieces[client]
        for client, piece in enumerate(pieces):
            owner[piece] = client
            sizes[client] += len(piece)
            held[client] += len(piece) > 0
    return owner, held


def dirichlet_recut(
    labels: np.ndarray,
    num_clients: int,
    beta: Concentration,
    seed: int,
    draw_seed: LegacySeed | None = 66,
    group: PositiveInt = 10,
    min_share: ShareBelowOne = 0.5,
    max_tries: PositiveInt = 2000,
) -> list[np.ndarray]:
    """The partition of FedSC's released code (NID1), bit for bit.

    The shuffled samples are cut into one part for each group of clients. Within a group each class
    is spread over the clients in shares from Dirichlet(beta). A client's fair share is the number
    of the part's samples divided by the number of the group's clients; a client that already has a
    fair share gets no more. A group is drawn again until every client has the fraction
    ``min_share`` of a fair share. The clients' samples, sorted by class, are then concatenated and
    cut into N pieces that differ in size by at most one.

    Args:
        labels: [n] class of each sample.
        num_clients: N.
        beta: concentration, the paper's alpha.
        seed: the run's seed; used if ``draw_seed`` is None.
        draw_seed: the seed of numpy's legacy generator.
        group: number of clients in a group; the last group may be smaller.
        min_share: the fraction of a fair share that every client must have before the last cut.
        max_tries: largest number of draws for a group.

    Raises:
        InputError: no draw gave every client enough samples, or the seed is too large.
    """
    generator = _generator(seed if draw_seed is None else draw_seed)
    shuffled = generator.permutation(len(labels))
    starts = range(0, num_clients, group)
    part = int(group / num_clients * len(labels))
    parts = np.split(shuffled, [part * place for place in range(1, len(starts))])
    lists = []
    for start, members in zip(starts, parts, strict=True):
        width = min(group, num_clients - start)
        fair = len(members) / width
        min_size = int(min_share * fair)
        counts = draw_until(
            partial(_balanced_counts, np.bincount(labels[members]), width, fair, beta, generator),
            max_tries,
            min_size,
            min_classes=0,
            options=f"partition.min_share={min_share} ({min_size} samples)",
            where=f"partition.beta={beta} and a group of {width} clients",
        )
        by_class = members[np.argsort(labels[members], kind="stable")]
        owner = np.repeat(np.tile(np.arange(width), counts.shape[1]), counts.T.ravel())
        lists.append(by_class[np.argsort(owner, kind="stable")])
    return [np.sort(piece) for piece in np.array_split(np.concatenate(lists), num_clients)]


def _balanced_counts(
    sizes: np.ndarray, width: int, fair: float, beta: float, generator: np.random.RandomState
) -> np.ndarray:
    """Draw the number of samples of each of C classes for each of ``width`` clients, [width, C].

    A client that already has ``fair`` samples gets no samples of later classes.
    """
    counts = np.zeros((width, len(sizes)), dtype=np.int64)
    for label, size in enumerate(sizes):
        shares = _balanced_shares(counts.sum(axis=1), fair, beta, generator)
        counts[:, label] = _cut(size, shares)
    return counts


def legacy_dirichlet(
    labels: np.ndarray,
    num_clients: int,
    beta: Concentration,
    draw_seed: LegacySeed = 0,
    min_size: NonNegativeInt = 2500,
    max_tries: PositiveInt = 10000,
) -> list[np.ndarray]:
    """FedPTR's partition: each class is spread over the clients in shares from Dirichlet(beta).

    Shares are drawn again until every client has ``min_size`` samples. With ``draw_seed=0`` the
    clients have the sizes in FedPTR (Chen et al., 2023, Table 11). Shares come from numpy's legacy
    generator. Each client's number of samples of a class is rounded down. The samples that remain
    go to one client, drawn at random for each class. Client 0 gets the first samples of each class
    in the order of the dataset, client 1 the next samples, and so on.

    Args:
        labels: [n] class of each sample; classes must be of equal size.
        num_clients: N.
        beta: concentration, the paper's alpha.
        draw_seed: the seed of the shares; independent of the run's seed.
        min_size: number of samples that every client must have.
        max_tries: largest number of draws.

    Raises:
        InputError: classes differ in size, there are too few samples, or no draw gave every client
            ``min_size`` samples.
    """
    sizes = np.bincount(labels)
    if sizes.min() != sizes.max():
        raise InputError(
            "partition=legacy_dirichlet: classes must be of equal size; "
            f"here they have {sizes.min()} to {sizes.max()} samples"
        )
    check_min_size(min_size, len(labels), num_clients)
    generator = _generator(draw_seed)
    counts = draw_until(
        lambda: _legacy_counts(sizes, num_clients, beta, generator),
        max_tries,
        min_size,
        min_classes=0,
        options=f"partition.min_size={min_size}",
        where=f"partition.beta={beta} and clients.count={num_clients}",
    )
    return deal_in_order(labels, counts, np.arange(len(labels)))


def _legacy_counts(
    sizes: np.ndarray, num_clients: int, beta: float, generator: np.random.RandomState
) -> np.ndarray:
    """Draw each client's number of samples of each class [N, C] from the class sizes [C]."""
    counts = np.empty((num_clients, len(sizes)), dtype=np.int64)
    for label, size in enumerate(sizes):
        shares = np.nan_to_num(generator.dirichlet(np.full(num_clients, beta)))
        counts[:, label] = (shares * size).astype(np.int64)
        if rest := size - counts[:, label].sum():
            counts[generator.randint(0, num_clients), label] += rest
    return counts


def _generator(seed: int) -> np.random.RandomState:
    """Numpy's legacy generator with this seed.

    Raises:
        InputError: the seed is too large for the generator.
    """
    if seed >= 2**32:
        raise InputError(f"seed={seed}: this partition needs a seed below {2**32}")
    return np.random.RandomState(seed)


def _cut(size: int, shares: np.ndarray) -> np.ndarray:
    """Divide ``size`` samples by ``shares`` [N]; returns each client's number of samples [N].

    The cumulative shares are multiplied by ``size`` and rounded down; each client gets the samples
    between two of these numbers. The last client gets the remaining samples, which are all samples
    if no share is positive.
    """
    total = shares.sum()
    ends = (np.cumsum(shares / total) * size).astype(np.int64) if total > 0 else 0 * shares
    ends[-1] = size
    return np.diff(ends, prepend=0).astype(np.int64)


def _balanced_shares(
    sizes: np.ndarray, limit: float, beta: float, generator: np.random.RandomState
) -> np.ndarray:
    """Draw the N clients' shares [N] of a class from Dirichlet(beta).

    The share is 0 for clients that have ``limit`` or more samples.

    ``sizes`` [N] are the clients' numbers of samples so far.
    """
    shares = np.nan_to_num(generator.dirichlet(np.full(len(sizes), beta)))
    return np.where(sizes < limit, shares, 0.0)
