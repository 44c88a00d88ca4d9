"""Devices whose values are drawn uniformly from ranges, or are all the same."""

from functools import partial
from typing import Annotated, Any

import numpy as np
from pydantic import PlainValidator

from fedexp.core.randomness import numpy_generator
from fedexp.system.devices import Devices
from fedexp.system.source import CountFlops, DeviceSource, given_speed, in_samples


def _range(value: Any, above_zero: bool = False) -> float | list[float]:
    """Check that ``value`` is a number, or a range [smallest, largest], from 0 or above 0."""
    bounds = value if isinstance(value, list) and len(value) == 2 else [value, value]
    numbers = [each for each in bounds if type(each) in (int, float) and 0 <= each < np.inf]
    if len(numbers) != 2 or numbers[0] > numbers[1]:
        raise ValueError("should be a number, or [smallest, largest]; of at least 0")
    if above_zero and not numbers[0]:
        raise ValueError("should be above 0")
    return value  # type: ignore[no-any-return]


Range = Annotated[float | list[float], PlainValidator(_range)]
"""A number, or the smallest and the largest number of a range."""
PositiveRange = Annotated[float | list[float], PlainValidator(partial(_range, above_zero=True))]
"""A number above 0, or the smallest and the largest number of a range above 0."""


class Uniform(DeviceSource):
    """Each value of a client's device is drawn from its range, independently of the others.

    If a single number is given in place of a range, all clients have this number.

    Args:
        samples_per_second: training samples that a device computes in a second.
        flops_per_second: floating-point operations in a second, in place of ``samples_per_second``.
        download: bytes per second.
        upload: bytes per second.
        latency: delay of a message in seconds, besides the time for its bytes. It is the same in
            both directions.
    """

    def __init__(
        self,
        samples_per_second: PositiveRange | None,
        flops_per_second: PositiveRange | None,
        download: PositiveRange,
        upload: PositiveRange,
        latency: Range,
    ) -> None:
        speed: Range
        speed, self.in_flops = given_speed(samples_per_second, flops_per_second)
        self.ranges = (speed, download, upload, latency)

    def draw(self, num_clients: int, seed: int, flops_of_sample: CountFlops) -> Devices:
        """Draw the devices of all clients; see ``DeviceSource``."""
        shares = numpy_generator(seed, "devices").random((num_clients, len(self.ranges)))
        speed, download, upload, latency = (
            _within(bounds, share) for bounds, share in zip(self.ranges, shares.T, strict=True)
        )
        return Devices(in_samples(speed, self.in_flops, flops_of_sample), download, upload, latency)


def _within(bounds: float | list[float], share: np.ndarray) -> np.ndarray:
    """Numbers in the range ``bounds``: a share of 0 gives the smallest number, 1 the largest."""
    low, high = bounds if isinstance(bounds, list) else (bounds, bounds)
    value: np.ndarray = low + share * (high - low)
    return value
