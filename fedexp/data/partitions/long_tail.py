"""Long-tailed classes: thinned out before any partition."""

from typing import Annotated

import numpy as np
from pydantic import Field

from fedexp.core.randomness import numpy_generator
from fedexp.data.split import deal


def long_tail(labels: np.ndarray, rho: Annotated[float, Field(ge=1)], seed: int) -> np.ndarray:
    """Thin the classes out to a long tail, before any partition (FedSC).

    Class j keeps n_max * rho^(-j/(C-1)) random samples, rounded down, at least one and at most all
    it has; n_max is the size of the largest class, and j counts the classes in label order.

    Args:
        labels: [n] class of each sample.
        rho: imbalance ratio between the first and the last class.
        seed: decides which samples stay.

    Returns:
        The sorted indices of the samples that stay.
    """
    sizes = np.bincount(labels)
    classes = np.flatnonzero(sizes)
    exponents = np.arange(len(classes)) / max(len(classes) - 1, 1)
    # The power's rounding error must not turn 81 into 80.
    tail = np.floor(sizes.max() / rho**exponents + 1e-6).astype(np.int64)
    keep = np.zeros_like(sizes)
    keep[classes] = np.clip(tail, 1, sizes[classes])
    return deal(labels, keep[None, :], numpy_generator(seed, "long_tail"))[0]
