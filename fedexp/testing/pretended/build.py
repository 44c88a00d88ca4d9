"""Compiles and loads ``device.cpp``."""

import hashlib
import importlib.util
import os
import shutil
import tempfile
from functools import cache
from pathlib import Path
from types import ModuleType

import torch

NAME = "pretended"
"""The type of the device: its first device is ``torch.device("pretended", 0)``."""

_SOURCE = Path(__file__).with_name("device.cpp")


def missing_tool() -> str | None:
    """The program that is needed to compile the device and is not on this machine, if any."""
    if not shutil.which(os.environ.get("CXX", "c++")):
        return "a C++ compiler"
    return None if shutil.which("ninja") else "ninja"


@cache
def load() -> ModuleType:
    """Compile the device if needed, make it known to PyTorch, and return its functions.

    In each process this must come before the first backward pass, for which PyTorch counts the
    devices.
    """
    name = _module_name()
    root = os.environ.get("TORCH_EXTENSIONS_DIR") or Path.home() / ".cache" / "torch_extensions"
    library = Path(root, name, f"{name}.so")
    if not library.exists():
        _compile(name, library)
    spec = importlib.util.spec_from_file_location(name, library)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _module_name() -> str:
    """A name for this source and this version of PyTorch; others must not load the library."""
    version = hashlib.sha256(_SOURCE.read_bytes() + torch.__version__.encode()).hexdigest()
    return f"fedexp_{NAME}_{version[:12]}"


def _compile(name: str, library: Path) -> None:
    """Compile into a new folder first, because other processes may do the same."""
    from torch.utils import cpp_extension  # says on import that there is no GPU

    library.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=library.parent) as folder:
        cpp_extension.load(
            name,
            [str(_SOURCE)],
            build_directory=folder,
            extra_cflags=["-O1", "-w"],
            is_python_module=False,
        )
        os.replace(Path(folder, library.name), library)
