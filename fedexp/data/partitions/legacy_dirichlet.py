"""FedPTR's partition: the one behind its published client sizes."""

import numpy as np
from pydantic import NonNegativeInt, PositiveInt

from fedexp.data.partitions.shares import (
    Concentration,
    LegacySeed,
    check_min_size,
    draw_until,
    legacy_generator,
)
from fedexp.data.split import deal_in_order
from fedexp.errors import InputError


def legacy_dirichlet(
    labels: np.ndarray,
    num_clients: int,
    beta: Concentration,
    draw_seed: LegacySeed = 0,
    min_size: NonNegativeInt = 2500,
    max_tries: PositiveInt = 10000,
) -> list[np.ndarray]:
    """Each class over the clients by Dir(beta), redrawn until every client has ``min_size``.

    With ``draw_seed=0`` these are the client sizes that FedPTR publishes (Chen et al., 2023,
    Table 11). Shares come from numpy's legacy generator and are rounded down; one random client
    gets the rest of a class. Of each class, client 0 gets the first samples of the dataset, client
    1 the next, and so on.

    Args:
        labels: [n] class of each sample; classes must be of equal size.
        num_clients: N.
        beta: concentration, the paper's alpha.
        draw_seed: decides the shares; independent of the run's seed.
        min_size: samples that every client must have.
        max_tries: draws at most.

    Raises:
        InputError: classes differ in size, there are too few samples, or no draw gave every client
            ``min_size`` of them.
    """
    sizes = np.bincount(labels)
    if sizes.min() != sizes.max():
        raise InputError(
            "partition=legacy_dirichlet: classes must be of equal size; "
            f"here they have {sizes.min()} to {sizes.max()} samples"
        )
    check_min_size(min_size, len(labels), num_clients)
    generator = legacy_generator(draw_seed)
    counts = draw_until(
        lambda: _counts(sizes, num_clients, beta, generator),
        max_tries,
        min_size,
        min_classes=0,
        options=f"partition.min_size={min_size}",
        where=f"partition.beta={beta} and clients.count={num_clients}",
    )
    return deal_in_order(labels, counts, np.arange(len(labels)))


def _counts(
    sizes: np.ndarray, num_clients: int, beta: float, generator: np.random.RandomState
) -> np.ndarray:
    """[N, C] one draw of the samples of each class for each client, from their ``sizes`` [C]."""
    counts = np.empty((num_clients, len(sizes)), dtype=np.int64)
    for label, size in enumerate(sizes):
        shares = np.nan_to_num(generator.dirichlet(np.full(num_clients, beta)))
        counts[:, label] = (shares * size).astype(np.int64)
        if rest := size - counts[:, label].sum():
            counts[generator.randint(0, num_clients), label] += rest
    return counts
