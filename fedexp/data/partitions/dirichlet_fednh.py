"""FedNH's partition: balanced Dirichlet shares, with a repair for clients of few classes."""

import numpy as np

from fedexp.data.partitions.shares import (
    Concentration,
    cut,
    legacy_balanced_shares,
    legacy_generator,
)
from fedexp.data.split import by_owner

DRAWS = 3
MIN_SIZE, MIN_CLASSES = 10, 2


def dirichlet_fednh(
    labels: np.ndarray, num_clients: int, beta: Concentration, seed: int
) -> list[np.ndarray]:
    """The partition of FedNH's released code (Dai et al., AAAI 2023), bit for bit.

    Classes are spread in label order by Dir(beta); a client that has n/N samples gets no more. From
    the third class on, the i-th client with at most one class so far swaps its piece with the i-th
    client from the end. A draw is accepted if every client has 10 samples and 2 classes; the third
    is kept in any case, so a client may have less, or nothing.

    Args:
        labels: [n] class of each sample.
        num_clients: N.
        beta: concentration.
        seed: of numpy's legacy generator, below 2**32.

    Raises:
        InputError: the seed is too large.
    """
    generator = legacy_generator(seed)
    generator.permutation(len(labels))  # the released code draws it and does not use it
    for _ in range(DRAWS):
        owner, held = _draw(labels, num_clients, beta, generator)
        sizes = np.bincount(owner, minlength=num_clients)
        if sizes.min() >= MIN_SIZE and held.min() >= MIN_CLASSES:
            break
    return by_owner(owner, num_clients)


def _draw(
    labels: np.ndarray, num_clients: int, beta: float, generator: np.random.RandomState
) -> tuple[np.ndarray, np.ndarray]:
    """The client of each sample [n], and the number of classes of each client [N]."""
    owner = np.empty(len(labels), dtype=np.int64)
    sizes, held = (np.zeros(num_clients, dtype=np.int64) for _ in range(2))
    for position, label in enumerate(np.unique(labels)):
        index = np.flatnonzero(labels == label)
        generator.shuffle(index)
        limit = len(labels) / num_clients
        counts = cut(len(index), legacy_balanced_shares(sizes, limit, beta, generator))
        pieces = np.split(index, np.cumsum(counts)[:-1])
        if position >= 2:
            for place, client in enumerate(np.flatnonzero(held <= 1).tolist(), start=1):
                pieces[client], pieces[-place] = pieces[-place], pieces[client]
        for client, piece in enumerate(pieces):
            owner[piece] = client
            sizes[client] += len(piece)
            held[client] += len(piece) > 0
    return owner, held
