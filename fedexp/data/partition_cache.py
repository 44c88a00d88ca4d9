"""Partitions kept on disk, in files named by a hash of everything that they depend on."""

import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path
from zipfile import BadZipFile

import numpy as np

from fedexp.data.split import by_owner
from fedexp.errors import InputError
from fedexp.state.atomic import atomic_path


def fingerprint(*parts: object) -> str:
    """A hash of these values: arrays by dtype, shape and content, others by their repr."""
    digest = hashlib.blake2b(digest_size=16)
    for part in parts:
        if isinstance(part, np.ndarray):
            digest.update(f"{part.dtype}{part.shape}".encode() + part.tobytes())
        else:
            digest.update(f"{part!r};".encode())
    return digest.hexdigest()


def cached_partition(
    path: Path, num_samples: int, num_clients: int, compute: Callable[[], list[np.ndarray]]
) -> list[np.ndarray]:
    """The partition kept at ``path``; computed and written if the file is absent or damaged.

    Args:
        path: a ``.npz`` file; its folders are created.
        num_samples: n, over which the indices run.
        num_clients: N.
        compute: yields for each client its sorted indices.

    Raises:
        InputError: the folder cannot be written.
    """
    owner = _load(path, num_samples, num_clients)
    if owner is not None:
        return by_owner(owner, num_clients)
    clients = compute()
    try:
        _save(path, clients, num_samples)
    except OSError as error:
        raise InputError(f"data.cache: {path} cannot be written ({error})") from error
    return clients


def _load(path: Path, num_samples: int, num_clients: int) -> np.ndarray | None:
    """The owner [n] of each sample, or None if the file is absent or damaged."""
    try:
        with np.load(path, allow_pickle=False) as file:
            owner: np.ndarray = file["owner"]
    except (OSError, ValueError, EOFError, KeyError, BadZipFile):
        return None
    if owner.shape != (num_samples,) or owner.dtype != np.int64:
        return None
    return owner if np.all((owner >= 0) & (owner <= num_clients)) else None


def _save(path: Path, clients: Sequence[np.ndarray], num_samples: int) -> None:
    owner = np.full(num_samples, len(clients))
    for client, index in enumerate(clients):
        owner[index] = client
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_path(path) as temporary:
        np.savez(temporary, owner=owner)
