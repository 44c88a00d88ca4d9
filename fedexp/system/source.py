"""The contract of a rule that gives each client a device."""

from collections.abc import Callable

from fedexp.system.devices import Devices

CountFlops = Callable[[], float]
"""Counts the floating-point operations of training on one sample, when it is called."""


class DeviceSource:
    """Gives each client a device; this base class gives none (``system=none``).

    Without devices there is no simulated time.

    Attributes:
        has_devices: whether there are devices, and so simulated time.
    """

    has_devices: bool = False

    def check(self, num_clients: int) -> None:
        """Raise InputError if the devices do not suffice; called before data is read."""

    def draw(self, num_clients: int, seed: int, flops_of_sample: CountFlops) -> Devices:
        """The devices of all clients; draws depend on the seed and the client's number alone."""
        raise NotImplementedError
