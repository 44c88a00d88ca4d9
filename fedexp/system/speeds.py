"""Computing speeds of devices, given in samples or in floating-point operations per second."""

import numpy as np

from fedexp.errors import InputError
from fedexp.system.source import CountFlops


def is_in_flops(samples_per_second: object, flops_per_second: object) -> bool:
    """Whether the speed is given in floating-point operations.

    Raises InputError if both values or neither are given.
    """
    if (samples_per_second is None) != (flops_per_second is None):
        return flops_per_second is not None
    found, advice = "both are", "make one of them null"
    if flops_per_second is None:
        found, advice = "neither is", "make one of them a number"
    raise InputError(
        "system: needs either system.samples_per_second or system.flops_per_second, but "
        f"{found} set; {advice}"
    )


def in_samples(speeds: np.ndarray, in_flops: bool, flops_of_sample: CountFlops) -> np.ndarray:
    """Convert ``speeds`` [N] to samples per second.

    Args:
        speeds: in samples or in floating-point operations per second.
        in_flops: whether ``speeds`` are in floating-point operations.
        flops_of_sample: counts the operations of training on one sample.
    """
    return speeds / flops_of_sample() if in_flops else speeds
