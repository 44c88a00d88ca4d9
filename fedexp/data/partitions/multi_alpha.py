"""HiCS-FL's partition: blocks of clients of different heterogeneity."""

from typing import Annotated

import numpy as np
from pydantic import Field

from fedexp.core.randomness import numpy_generator
from fedexp.data.partitions.shares import Concentration, dirichlet_counts
from fedexp.data.split import deal
from fedexp.errors import InputError


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
        counts = dirichlet_counts(sizes, len(block), alpha, False, generator)
        clients += [np.sort(part[index]) for index in deal(labels[part], counts, generator)]
    return clients
