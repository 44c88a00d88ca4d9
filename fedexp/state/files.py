"""Files of a checkpoint: tensors, digests and hard links."""

import hashlib
import io
import os
from pathlib import Path
from typing import Any

import torch


def dump(value: Any) -> bytes:
    """Serialise a tensor, or containers of tensors and numbers, for ``load``."""
    # Serialise into memory first: if writing a file failed, PyTorch would hide the reason.
    content = io.BytesIO()
    torch.save(value, content)
    return content.getvalue()


def load(path: Path, device: torch.device) -> Any:
    """Read what ``dump`` serialised, with the tensors on ``device``."""
    return torch.load(path, weights_only=True, map_location=device)


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
