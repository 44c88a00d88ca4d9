"""A uniformly random partition."""

import numpy as np

from fedexp.core.randomness import numpy_generator
from fedexp.data.split import by_owner


def iid(num_samples: int, num_clients: int, seed: int) -> list[np.ndarray]:
    """Deal the samples at random; two clients' numbers of samples differ by at most one."""
    owner = np.arange(num_samples) % num_clients
    return by_owner(numpy_generator(seed, "partition").permutation(owner), num_clients)
