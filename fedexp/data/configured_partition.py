"""The partition that a config asks for: computed, or read from an earlier run's file."""

import inspect
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np

from fedexp.config.build import Node, build
from fedexp.data import partitions, split
from fedexp.data.partition_cache import cached_partition, fingerprint
from fedexp.errors import InputError

SUPPLIED = ("labels", "users", "num_samples", "num_clients", "seed")
"""What a partition function may take from the run; the config sets its other arguments."""


def partition_indices(
    node: Node,
    labels: np.ndarray,
    users: np.ndarray | None,
    num_clients: int,
    seed: int,
    cache: Path | None,
    long_tail: float | None,
) -> list[np.ndarray]:
    """Partition the training samples as the config says, or read what an earlier run has kept.

    Args:
        node: config node of the partition function.
        labels: [n] class of each sample.
        users: [n] who each sample came from, None if unknown.
        num_clients: N.
        seed: seed of the run.
        cache: results are kept below ``cache/partitions``; None keeps nothing.
        long_tail: imbalance ratio to which the classes are thinned out first, None for not at all.

    Returns:
        For each client, its sorted int64 indices into ``labels``.

    Raises:
        InputError: a wrong option, a partition that cannot be made, or no samples at all.
    """
    if not len(labels):
        raise InputError("data: the training split is empty, so no client would have data")
    function = build("partition", node, supplied=SUPPLIED)
    compute = partial(_partition, function, labels, users, num_clients, seed, long_tail)
    source = getattr(sys.modules[function.func.__module__], "__file__", None)
    if cache is None or source is None:  # a function typed into a notebook has no file to compare
        return compute()
    name = fingerprint(
        _code(Path(source)),
        sorted(node.items()),
        labels,
        None if users is None else np.unique(users, return_inverse=True)[1],
        num_clients,
        seed,
        long_tail,
    )
    path = cache / "partitions" / f"{name}.npz"
    return cached_partition(path, len(labels), num_clients, compute)


def _code(source: Path) -> list[bytes]:
    """The function's file and the arithmetic under it: after an edit, old files do not count."""
    own = Path(partitions.__file__).parent.glob("*.py")
    return [path.read_bytes() for path in (source, Path(split.__file__), *sorted(own))]


def _partition(
    function: Callable[..., list[np.ndarray]],
    labels: np.ndarray,
    users: np.ndarray | None,
    num_clients: int,
    seed: int,
    rho: float | None,
) -> list[np.ndarray]:
    """Thin out the classes, partition what is kept, and map the indices back."""
    kept = np.arange(len(labels)) if rho is None else partitions.long_tail(labels, rho, seed)
    supplied = {
        "labels": labels[kept],
        "users": None if users is None else users[kept],
        "num_samples": len(kept),
        "num_clients": num_clients,
        "seed": seed,
    }
    wanted = inspect.signature(function).parameters
    clients = function(**{name: supplied[name] for name in SUPPLIED if name in wanted})
    return [kept[index] for index in clients]
