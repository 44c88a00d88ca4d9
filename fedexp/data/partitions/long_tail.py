"""Give the classes long-tailed sizes before the partition."""

from typing import Annotated

import numpy as np
from pydantic import Field

from fedexp.core.randomness import numpy_generator
from fedexp.data.split import deal
from fedexp.rounding import rounded_down


def long_tail(labels: np.ndarray, rho: Annotated[float, Field(ge=1)], seed: int) -> np.ndarray:
    """Remove samples so that the class sizes have a long tail (FedSC).

    Let n_max be the size of the largest of the C classes. Class j (from 0, in label order) keeps
    n_max * rho^(-j/(C-1)) random samples. This number is rounded down, and it is at least one and
    at most the size of the class.

    Args:
        labels: [n] class of each sample.
        rho: ratio of the first class's size to the last class's size, if all classes have equally
            many samples.
        seed: seed of the choice of samples.

    Returns:
        The sorted indices of the samples that remain.
    """
    sizes = np.bincount(labels)
    classes = np.flatnonzero(sizes)
    exponents = np.arange(len(classes)) / max(len(classes) - 1, 1)
    shares = (1 / rho**exponents).tolist()
    tail = np.array([rounded_down(share, int(sizes.max())) for share in shares])
    keep = np.zeros_like(sizes)
    keep[classes] = np.clip(tail, 1, sizes[classes])
    return deal(labels, keep[None, :], numpy_generator(seed, "long_tail"))[0]
