"""The device for PyTorch (``torch.pretended``) and for Lightning (``Pretended``), and its waits."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import cache
from types import FrameType, ModuleType
from typing import Any

import torch
from lightning.pytorch.accelerators import Accelerator
from torch.utils.backend_registration import (
    generate_methods_for_privateuse1_backend,
    rename_privateuse1_backend,
)

from fedexp.testing.pretended.build import NAME, load, missing_tool

_FREE_BYTES, _AUTOCAST_DTYPE = 2**30, torch.bfloat16


class Pretended(Accelerator):
    """Lightning's accelerator for the device; all processes of a run use the same device."""

    def setup_device(self, device: torch.device) -> None:
        """Do nothing, because the device needs no preparation."""

    def get_device_stats(self, device: Any) -> dict[str, Any]:
        """No statistics."""
        return {}

    def teardown(self) -> None:
        """Do nothing."""

    @staticmethod
    def parse_devices(devices: Any) -> Any:
        """The numbers of the processes of this machine."""
        return list(range(devices)) if isinstance(devices, int) else devices

    @staticmethod
    def get_parallel_devices(devices: Any) -> list[torch.device]:
        """The device, for each process."""
        return [device()] * len(devices)

    @staticmethod
    def auto_device_count() -> int:
        """One device."""
        return 1

    @staticmethod
    def is_available() -> bool:
        """Whether the device can be compiled here."""
        return missing_tool() is None

    @staticmethod
    def name() -> str:
        """The name of the device."""
        return NAME


@cache
def device() -> torch.device:
    """The device, which is made known to PyTorch."""
    functions = load()
    rename_privateuse1_backend(NAME)
    module = _module(functions)
    torch._register_device_module(NAME, module)
    sys.modules[module.__name__] = module
    generate_methods_for_privateuse1_backend()
    torch.set_autocast_dtype(
        NAME, _AUTOCAST_DTYPE
    )  # PyTorch 2.6 warns of any other, even if unused
    return torch.device(NAME, 0)


@contextmanager
def told_of_waits(listener: Callable[[str, FrameType | None], object]) -> Iterator[None]:
    """Inside the block, call ``listener`` before each wait.

    Its arguments are what waits, and the frame of the Python function that does it. What the
    listener raises is a RuntimeError of that function.
    """
    device()
    load().listen(lambda what: listener(what, sys._getframe(1)))
    try:
        yield
    finally:
        load().listen(None)


def _module(functions: ModuleType) -> ModuleType:
    """``torch.pretended``, with the functions that PyTorch asks of ``torch.cuda`` and its like."""
    module = ModuleType(f"torch.{NAME}")
    vars(module).update(
        _is_in_bad_fork=lambda: False,
        current_device=lambda: 0,
        device=lambda device=None: nullcontext(),
        device_count=lambda: 1,
        get_amp_supported_dtype=lambda: [_AUTOCAST_DTYPE],
        get_rng_state=lambda device=None: functions.get_rng_state(),
        is_available=lambda: True,
        is_initialized=lambda: True,
        manual_seed=functions.manual_seed,
        manual_seed_all=functions.manual_seed,
        mem_get_info=lambda device=None: (_FREE_BYTES, _FREE_BYTES),
        set_device=lambda device: None,
        set_rng_state=lambda state, device=None: functions.set_rng_state(state),
        synchronize=lambda device=None: None,
    )
    return module
