"""Devices whose speeds are log-normally distributed: a few are much slower than most."""

import numpy as np
from pydantic import NonNegativeFloat, PositiveFloat

from fedexp.core.randomness import numpy_generator
from fedexp.system.devices import Devices
from fedexp.system.source import CountFlops, DeviceSource, given_speed, in_samples


class LogNormal(DeviceSource):
    """A client's speed is the median speed times exp(spread z), with a standard normal z.

    One z is drawn for a client's computing speed, and another for its network, so a slow download
    comes with a slow upload. With a spread of 1, a sixth of the clients is slower than 0.37 times
    the median.

    Args:
        samples_per_second: median of the training samples that a device computes in a second.
        flops_per_second: median of the floating-point operations in a second, in place of
            ``samples_per_second``.
        download: median download speed, bytes per second.
        upload: median upload speed, bytes per second.
        latency: delay of a message in seconds, besides the time for its bytes. It is the same in
            both directions and for all clients.
        compute_spread: standard deviation of the logarithm of the computing speed.
        network_spread: standard deviation of the logarithm of download and upload.
    """

    def __init__(
        self,
        samples_per_second: PositiveFloat | None,
        flops_per_second: PositiveFloat | None,
        download: PositiveFloat,
        upload: PositiveFloat,
        latency: NonNegativeFloat,
        compute_spread: NonNegativeFloat,
        network_spread: NonNegativeFloat,
    ) -> None:
        self.speed, self.in_flops = given_speed(samples_per_second, flops_per_second)
        self.download, self.upload, self.latency = download, upload, latency
        self.compute_spread, self.network_spread = compute_spread, network_spread

    def draw(self, num_clients: int, seed: int, flops_of_sample: CountFlops) -> Devices:
        """Draw the devices of all clients; see ``DeviceSource``."""
        z = numpy_generator(seed, "devices").standard_normal((num_clients, 2))
        computing = self.speed * np.exp(self.compute_spread * z[:, 0])
        network = np.exp(self.network_spread * z[:, 1])
        return Devices(
            in_samples(computing, self.in_flops, flops_of_sample),
            self.download * network,
            self.upload * network,
            np.full(num_clients, float(self.latency)),
        )
