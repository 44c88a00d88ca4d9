"""Label skew: the clients' shares of each class follow a Dirichlet distribution."""

import numpy as np
from pydantic import NonNegativeInt

from fedexp.core.randomness import numpy_generator
from fedexp.data.partitions.shares import (
    Concentration,
    Tries,
    check_min_size,
    dirichlet_counts,
    draw_until,
)
from fedexp.data.split import deal
from fedexp.errors import InputError


def dirichlet(
    labels: np.ndarray,
    num_clients: int,
    beta: Concentration,
    seed: int,
    balance: bool = False,
    min_size: NonNegativeInt = 0,
    min_classes: NonNegativeInt = 0,
    max_tries: Tries = 100,
) -> list[np.ndarray]:
    """Spread each class over the clients in shares from the Dirichlet distribution Dir(beta).

    Args:
        labels: [n] class of each sample.
        num_clients: N.
        beta: concentration; a smaller beta gives more unequal shares.
        seed: seed of the shares and of the choice of samples.
        balance: if true, a client that already has n/N samples gets no samples of later classes.
        min_size: draw again until every client has at least this many samples.
        min_classes: draw again until every client has at least this many classes.
        max_tries: largest number of draws.

    Raises:
        InputError: in each draw, a client has too few samples or too few classes.
    """
    sizes = np.bincount(labels)
    check_min_size(min_size, len(labels), num_clients)
    if min_classes > np.count_nonzero(sizes):
        raise InputError(
            f"partition.min_classes={min_classes}: the data have {np.count_nonzero(sizes)} classes"
        )
    generator = numpy_generator(seed, "partition")
    minima = {"min_size": min_size, "min_classes": min_classes}
    counts = draw_until(
        lambda: dirichlet_counts(sizes, num_clients, beta, balance, generator),
        max_tries,
        min_size,
        min_classes,
        options=" ".join(f"partition.{key}={value}" for key, value in minima.items() if value),
        where=f"partition.beta={beta} and clients.count={num_clients}",
    )
    return deal(labels, counts, generator)
