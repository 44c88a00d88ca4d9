"""Small federations whose devices are given by hand."""

import numpy as np

from fedexp.runtime.federation import Federation
from fedexp.system.devices import Devices
from support.federations import federate

SMALL = (
    *("clients.count=5", "clients.per_round=5", "data.subset=200", "local.epochs=2", "rounds=3"),
    *("partition=iid", "local.batch_size=8", "model.hidden=[16]", "model.feature_dim=8"),
    *("measure.personal.every=1000", "measure.prototypes.every=1000", "system=uniform"),
)
SLOWER = [100.0, 40.0, 20.0, 10.0, 1.0]
"""Samples per second of the five clients: each has 40 samples, so an epoch has 5 steps."""


def limited(*overrides: str, network: float = 1e12) -> Federation:
    """A federation of five ever slower clients; messages take no time."""
    federation = federate(*SMALL, *overrides)
    speeds, lines = np.array(SLOWER), np.full(5, network)
    federation.system.devices = Devices(speeds, lines, lines, np.zeros(5))
    return federation
