"""Three devices with round numbers."""

import numpy as np

from fedexp.system.devices import Devices

THREE = Devices(
    samples_per_second=np.array([10.0, 20.0, 40.0]),
    download=np.array([1000.0, 2000.0, 4000.0]),
    upload=np.array([100.0, 200.0, 400.0]),
    latency=np.array([0.5, 0.25, 0.125]),
)
