"""Devices whose values are drawn uniformly from ranges, or are all the same."""

from typing import Annotated

import numpy as np
from pydantic import AfterValidator, Field, NonNegativeFloat, PositiveFloat

from fedexp.core.randomness import numpy_generator
from fedexp.system.devices import Devices
from fedexp.system.source import CountFlops, DeviceSource
from fedexp.system.speeds import in_samples, is_in_flops


def _ascending(bounds: list[float]) -> list[float]:
    if bounds[0] > bounds[1]:
        raise ValueError("should be [smallest, largest]")
    return bounds


_Pair = Field(min_length=2, max_length=2)
PositiveRange = Annotated[list[PositiveFloat], _Pair, AfterValidator(_ascending)]
"""The smallest and the largest number of a range."""
Range = Annotated[list[NonNegativeFloat], _Pair, AfterValidator(_ascending)]
"""The same for a range that may begin with 0."""


class Uniform(DeviceSource):
    """Each value of a client's device is drawn from its range, independently of the others.

    A number in place of a range is the same for all clients.

    Args:
        samples_per_second: training samples that a device computes in a second.
        flops_per_second: floating-point operations in a second, in place of samples.
        download: bytes per second.
        upload: bytes per second.
        latency: seconds that a message takes besides its bytes, each way.
    """

    has_devices = True

    def __init__(
        self,
        samples_per_second: PositiveFloat | PositiveRange | None,
        flops_per_second: PositiveFloat | PositiveRange | None,
        download: PositiveFloat | PositiveRange,
        upload: PositiveFloat | PositiveRange,
        latency: NonNegativeFloat | Range,
    ) -> None:
        self.in_flops = is_in_flops(samples_per_second, flops_per_second)
        speed = flops_per_second if self.in_flops else samples_per_second
        self.ranges = (speed, download, upload, latency)

    def draw(self, num_clients: int, seed: int, flops_of_sample: CountFlops) -> Devices:
        """See ``DeviceSource``."""
        shares = numpy_generator(seed, "devices").random((num_clients, len(self.ranges)))
        speed, download, upload, latency = (
            _within(bounds, share) for bounds, share in zip(self.ranges, shares.T, strict=True)
        )
        return Devices(in_samples(speed, self.in_flops, flops_of_sample), download, upload, latency)


def _within(bounds: float | list[float] | None, share: np.ndarray) -> np.ndarray:
    """The value at each ``share`` (0 to 1) of the range."""
    assert bounds is not None  # by ``is_in_flops``
    low, high = bounds if isinstance(bounds, list) else (bounds, bounds)
    value: np.ndarray = low + share * (high - low)
    return value
