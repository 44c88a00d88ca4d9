"""Measures in a new process, and describes the machine."""

import os
import platform
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch

T = TypeVar("T")
CUDA = torch.cuda.is_available()


def in_own_process(function: Callable[..., T], *arguments: Any) -> T:
    """Call the function in a new process, whose peak of memory is that of the call alone."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(function, *arguments).result()


def peak_mib() -> float:
    """Largest resident memory of this process so far.

    It is Linux's VmHWM; ``resource`` would count the process that started this one, too.
    """
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM"))


def machine() -> dict[str, Any]:
    """The processor or GPU, the number of cores, and the versions."""
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    names = [line.partition(": ")[2] for line in lines if line.startswith("model name")]
    return {
        "device": torch.cuda.get_device_name() if CUDA else names[0] if names else "CPU",
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
    }
