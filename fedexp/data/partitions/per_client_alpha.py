"""A partition with a Dirichlet concentration for each client, for HiCS-FL's Figure 6."""

from typing import Annotated

import numpy as np
from pydantic import Field

from fedexp.core.randomness import numpy_generator
from fedexp.data.partitions.shares import Concentration, share_by_weight
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
    classes = len(np.unique(labels))
    spaced = np.geomspace(first, last, num_clients)
    mixes = [generator.dirichlet(np.full(classes, alpha)) for alpha in spaced]
    weights = np.stack(mixes)
    if len(unwanted := np.flatnonzero(weights.sum(axis=0) == 0)):
        raise InputError(
            f"partition.alphas={alphas}: no mix of the {num_clients} clients has class "
            f"{np.unique(labels)[unwanted[0]]}; use larger values or more clients"
        )
    return share_by_weight(labels, weights, generator)
