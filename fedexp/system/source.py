"""The contract of a rule that gives each client a device."""

from collections.abc import Callable
from typing import TypeVar

import numpy as np

from fedexp.errors import InputError
from fedexp.system.devices import Devices

T = TypeVar("T")

CountFlops = Callable[[], np.ndarray]
"""Counts each client's floating-point operations of training on one sample [N], when called."""


class DeviceSource:
    """Gives each client a device; this base class gives none (``system=none``).

    Without devices there is no simulated time.
    """

    @property
    def has_devices(self) -> bool:
        """Whether there are devices, and so simulated time."""
        return type(self).draw is not DeviceSource.draw

    def check(self, num_clients: int) -> None:
        """Raise InputError if the devices do not suffice; called before data is read."""

    def draw(self, num_clients: int, seed: int, flops_of_sample: CountFlops) -> Devices:
        """The devices of all clients; draws depend on the seed and the client's number alone."""
        raise NotImplementedError


def given_speed(samples_per_second: T | None, flops_per_second: T | None) -> tuple[T, bool]:
    """The speed that is given, and whether it is in floating-point operations.

    Raises InputError if both values or neither are given.
    """
    if samples_per_second is not None and flops_per_second is None:
        return samples_per_second, False
    if flops_per_second is not None and samples_per_second is None:
        return flops_per_second, True
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
        flops_of_sample: counts each client's operations of training on one sample.
    """
    return speeds / flops_of_sample() if in_flops else speeds
