"""Files of a checkpoint: tensors, digests and hard links."""

import hashlib
import io
import os
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedexp.core.messages import Tensors
from fedexp.errors import InputError


def dump(value: Any) -> bytes:
    """Serialise a tensor, or containers of tensors and numbers, for ``load``."""
    # Serialise into memory first: if writing a file failed, PyTorch would hide the reason.
    content = io.BytesIO()
    torch.save(value, content)
    return content.getvalue()


def load(path: Path, device: torch.device | None) -> Any:
    """Read what ``dump`` serialised; code in the file never runs.

    Args:
        path: the file.
        device: where the tensors go; None for the device on which they were.

    Raises:
        OSError: the file is missing or cannot be read.
        InputError: the file is damaged, or holds other things than tensors.
    """
    try:
        return torch.load(path, weights_only=True, map_location=device)
    except OSError:
        raise
    except Exception:  # its type depends on the bytes: pickle takes any text as its commands
        # PyTorch's own message advises to let the file run its code, so the cause is left out.
        reason = "it is damaged, or holds other things than tensors, which fedexp never loads"
        found = reason if path.stat().st_size else "it is empty"
        raise InputError(f"{path}: cannot be read ({found})") from None


def load_tensors(path: Path) -> Tensors:
    """Read a state dict (name -> tensor) on the CPU. Raises as ``load``."""
    with warnings.catch_warnings(action="ignore"):  # of torch, about a foreign file's format
        state = load(path, torch.device("cpu"))
    check_tensors(state, path)
    tensors: Tensors = state
    return tensors


def check_tensors(state: Any, path: Path) -> None:
    """Raise InputError, which names the file ``path``, unless ``state`` is a state dict."""
    if not isinstance(state, dict) or not all(
        isinstance(name, str) and isinstance(each, Tensor) for name, each in state.items()
    ):
        raise InputError(
            f"{path}: is not a state dict (names and tensors, as "
            "torch.save(network.state_dict(), path) writes it)"
        )


def check_finite(tensors: Tensors, path: Path) -> None:
    """Raise InputError, which names the file ``path``, if a tensor holds NaN or Inf."""
    for name, value in tensors.items():
        if value.is_floating_point() and not bool(value.isfinite().all()):
            raise InputError(f"{path}: {name} holds NaN or Inf; a model's numbers must be finite")


def write_file(path: Path, content: bytes) -> str:
    """Write the file and return the digest of its content."""
    path.write_bytes(content)
    return digest(content)


def digest(content: bytes) -> str:
    """BLAKE2b hash of ``content``, as 32 hexadecimal digits."""
    return hashlib.blake2b(content, digest_size=16).hexdigest()


def link_file(existing: Path, path: Path) -> bool:
    """Make ``path`` a hard link to ``existing``; return False if this fails for any reason."""
    try:
        os.link(existing, path)
    except OSError:
        return False
    return True
