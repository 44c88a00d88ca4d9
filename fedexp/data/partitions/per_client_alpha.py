"""A partition with a Dirichlet concentration for each client, for HiCS-FL's Figure 6."""

from typing import Annotated

import numpy as np
from pydantic import Field

from fedexp.core.randomness import numpy_generator
from fedexp.data.partitions.shares import Concentration
from fedexp.data.split import share
from fedexp.errors import InputError


def per_client_alpha(
    labels: np.ndarray,
    num_clients: int,
    alphas: Annotated[list[Concentration], Field(min_length=2, max_length=2)],
    seed: int,
) -> list[np.ndarray]:
    """Draw each client's shares of the classes from a Dirichlet distribution (HiCS-FL, Figure 6).

    Client k has the concentration alpha_k. From client to client, alpha_k grows by a constant
    factor, from ``alphas[0]`` to ``alphas[1]``. The paper has 250 values in [0.01, 50] and does not
    give their spacing. To deal every sample, the samples of a class are split over all clients in
    proportion to the clients' shares of this class. Therefore client sizes differ somewhat. With
    many clients, the resulting shares are close to the drawn shares.

    Args:
        labels: [n] class of each sample.
        num_clients: N.
        alphas: alpha of the first and of the last client.
        seed: seed of the shares, of ties in rounding, and of the choice of samples.

    Raises:
        InputError: the first value is larger than the second, or all clients' shares of a class are
            zero.
    """
    first, last = alphas
    if first > last:
        raise InputError(f"partition.alphas={alphas}: the first value must not be the larger one")
    generator = numpy_generator(seed, "partition")
    classes = np.unique(labels)
    weights = np.zeros((num_clients, classes.max() + 1))
    for own, alpha in zip(weights, np.geomspace(first, last, num_clients), strict=True):
        own[classes] = generator.dirichlet(np.full(len(classes), alpha))
    if len(unwanted := classes[weights.sum(axis=0)[classes] == 0]):
        raise InputError(
            f"partition.alphas={alphas}: no mix of the {num_clients} clients has class "
            f"{unwanted[0]}; use larger values or more clients"
        )
    return share(labels, weights, generator)
