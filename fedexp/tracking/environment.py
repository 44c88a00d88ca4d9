"""The versions, the processor and the device that a run's numbers depend on."""

import platform
import subprocess
from collections.abc import Iterable
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from fedexp.config.schema import Engine
from fedexp.version import code_version

LIBRARIES = (
    *("torch", "torchvision", "lightning", "hydra-core", "omegaconf", "numpy", "scipy"),
    *("scikit-learn", "pandas"),
)

OF_ENGINE = ("precision", "compile", "channels_last", "deterministic")
"""Keys below ``engine`` that are part of an environment: a later start may change them."""

BITS_DEPEND_ON = ("torch", "processor", "device", "threads", "processes")
"""Keys of an environment that decide whether two runs can have the same bits."""


def environment(
    device: torch.device, engine: Engine, libraries: Iterable[str] = ()
) -> dict[str, Any]:
    """The environment of this process; it names no machine and no folder.

    Args:
        device: the device of training.
        engine: the keys ``engine.*`` of the run.
        libraries: names of further packages whose versions matter.
    """
    return {
        "python": platform.python_version(),
        **{name: package_version(name) for name in (*LIBRARIES, *libraries)},
        "system": f"{platform.system()} {platform.machine()}",
        "processor": f"{_maker()} {torch.backends.cpu.get_cpu_capability()}".strip(),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
        "threads": torch.get_num_threads(),
        "processes": engine.processes,
        **{key: getattr(engine, key) for key in OF_ENGINE},
    }


@cache
def fedexp_version() -> dict[str, Any]:
    """The version of fedexp and, in a clone, the git commit and whether files have changed since.

    A clone without git has the commit None.
    """
    root = Path(__file__).parents[2]
    in_clone = (root / ".git").exists()
    commit = _git(root, "rev-parse", "HEAD") if in_clone else None
    found: dict[str, Any] = {"version": code_version(), "commit": commit}
    if commit:
        found["changed"] = bool(_git(root, "diff", "--name-only", "HEAD", "--", "fedexp", "conf"))
    return found


def _git(root: Path, *words: str) -> str | None:
    """The output of a git command; None if it fails."""
    command = ["git", "--no-optional-locks", "-C", str(root), *words]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=2, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()


def package_version(package: str) -> str | None:
    """The version of an installed package; None if it is not installed."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


@cache
def _maker() -> str:
    """The processor's maker, such as AuthenticAMD, where Linux tells it."""
    try:
        with Path("/proc/cpuinfo").open(encoding="utf-8", errors="replace") as file:
            return next((line.split()[-1] for line in file if line.startswith("vendor_id")), "")
    except OSError:
        return ""
