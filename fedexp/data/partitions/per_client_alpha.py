"""A partition with a concentration of its own for each client, for HiCS-FL's Figure 6."""

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
    """Client k draws its mix of classes from Dir(alpha_k) (HiCS-FL, Figure 6).

    alpha_k goes from the first to the second of ``alphas`` in equal ratios; the paper has 250
    values in [0.01, 50] and does not say how they are spaced. Each class is split over all clients
    in proportion to their shares of it, so that every sample is dealt. So clients differ somewhat
    in size, and their mixes are near to those drawn when there are many clients.

    Args:
        labels: [n] class of each sample.
        num_clients: N.
        alphas: those of the first client and of the last.
        seed: decides mixes, remainders and samples.

    Raises:
        InputError: the first value is larger than the second.
    """
    first, last = alphas
    if first > last:
        raise InputError(f"partition.alphas={alphas}: the first value must not be the larger one")
    generator = numpy_generator(seed, "partition")
    classes = len(np.unique(labels))
    spaced = np.geomspace(first, last, num_clients)
    mixes = [generator.dirichlet(np.full(classes, alpha)) for alpha in spaced]
    return share_by_weight(labels, np.stack(mixes), generator)
