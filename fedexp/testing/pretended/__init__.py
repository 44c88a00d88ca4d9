"""The device ``pretended``: an accelerator in the CPU's memory, for tests without an accelerator.

A run on it has the option ``engine.device=fedexp.testing.pretended.Pretended``, and ends with the
same bits as on the CPU. However, like a GPU it refuses a call that mixes its tensors with tensors
of the CPU, a generator of the CPU, and ``.numpy()``. ``told_of_waits`` tells where the program
would wait for a GPU.

``device.cpp`` implements the device. It is compiled when it is first used, which takes half a
minute, and needs a C++ compiler and ninja. The device cannot show how fast a GPU is, nor results
that differ on a GPU by rounding, nor mistakes in the order of a GPU's streams.
"""

from fedexp.testing.pretended.accelerator import Pretended, told_of_waits
from fedexp.testing.pretended.build import missing_tool

__all__ = ["Pretended", "missing_tool", "told_of_waits"]
