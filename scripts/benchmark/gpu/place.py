"""Where a step runs."""

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch

from benchmark import random_images
from benchmark.process import peak_mib
from fedexp.testing.pretended import Pretended, told_of_waits

CLASSES = {"pretended": "fedexp.testing.pretended.Pretended"}
"""Name of a device -> the value of ``engine.device``, where that is another one."""

COMPILED = "engine.compile=true"
NO_COMPILER = {"left_out": "PyTorch compiles nothing for the pretended device"}

_WAIT = "called a synchronizing CUDA operation"
"""PyTorch's warning about a wait; others may come between."""


@dataclass(frozen=True)
class Place:
    """The options of the command.

    Attributes:
        folder: the folder of the results.
        device: cuda, cpu or pretended.
        tiny: whether to take little data and few rounds, to try the command.
        images: a folder of CIFAR-10 as images; None for random images.
        seconds: the time for the step.
    """

    folder: Path
    device: str
    tiny: bool
    images: str | None
    seconds: float

    def prepare(self) -> None:
        """Make the device known to PyTorch, before any training."""
        if self.device == "pretended":
            Pretended.get_parallel_devices([0])

    @property
    def on_device(self) -> list[str]:
        return [f"engine.device={CLASSES.get(self.device, self.device)}"]

    def lacks_compiler(self, overrides: Sequence[str]) -> bool:
        """Whether these overrides need a compiler, and the device has none."""
        return self.device == "pretended" and COMPILED in overrides

    @property
    def cifar10(self) -> list[str]:
        if self.images:
            return ["data=image_folder", f"data.root={self.images}"]
        return random_images.OVERRIDES

    def synchronize(self) -> None:
        """Wait until the device has finished its work."""
        if self.device != "cpu":
            torch.get_device_module(self.device).synchronize()

    def peak_mib(self) -> float:
        """The largest memory of the GPU's tensors; on other devices, of the process."""
        return torch.cuda.max_memory_allocated() / 2**20 if self.device == "cuda" else peak_mib()

    @contextmanager
    def counted_waits(self) -> Iterator[list[object]]:
        """Yield a list that has an entry for each wait for the device after the block."""
        found: list[object] = []
        if self.device == "pretended":
            with told_of_waits(lambda what, _: found.append(what)):
                yield found
        elif self.device == "cuda":
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                torch.cuda.set_sync_debug_mode("warn")
                try:
                    yield found
                finally:
                    torch.cuda.set_sync_debug_mode("default")
                    found += [each for each in caught if _WAIT in str(each.message)]
        else:
            yield found
