"""Compute the partition that a config names, or read it from the file of an earlier run."""

import inspect
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np

from fedexp.config.build import Node, build
from fedexp.config.compatibility.declaration import Declaration, needed
from fedexp.config.compatibility.traits import Need
from fedexp.data import partitions, split
from fedexp.data.cache import cached_partition, fingerprint
from fedexp.errors import InputError

SUPPLIED = ("labels", "users", "num_samples", "num_clients", "seed")
"""Arguments that a partition function gets from the run; the config sets all others."""


def declared_partition(function: Callable[..., object], dataset: str) -> Declaration:
    """The traits of data that a partition function requires; errors name the ``dataset``.

    A function with the argument ``labels`` needs classes. Every function except ``natural`` needs
    the samples of all clients at once.
    """
    key = f"partition={getattr(function, '__name__', function)}"
    needs: dict[str, str] = {}
    if "labels" in inspect.signature(function).parameters:
        needs |= needed(key, Need.CLASS_LABELS, dataset, "use natural or iid")
    if function is not partitions.natural:
        needs |= needed(key, Need.ALL_CLIENTS, dataset, "use partition=natural")
    return Declaration(key, needs=needs)


def partition_indices(
    node: Node,
    labels: np.ndarray,
    users: np.ndarray | None,
    num_clients: int,
    seed: int,
    cache: Path | None,
    long_tail: float | None,
) -> list[np.ndarray]:
    """Partition the training samples, or read the same partition from the file of an earlier run.

    Args:
        node: config node of the partition function.
        labels: [n] class of each sample.
        users: [n] the user of each sample; None if unknown.
        num_clients: N.
        seed: seed of the run.
        cache: partitions are stored in ``cache/partitions``. If None, nothing is stored.
        long_tail: ratio of the first class's size to the last class's size. Before the partition,
            ``partitions.long_tail`` removes samples to reach this ratio. If None, no samples are
            removed.

    Returns:
        For each client, its sorted int64 indices into ``labels``.

    Raises:
        InputError: an option is wrong, the partition is impossible, or there are no samples.
    """
    if not len(labels):
        raise InputError("data: the training split is empty, so no client would have data")
    function = build("partition", node, list, supplied=SUPPLIED)
    compute = partial(_partition, function, labels, users, num_clients, seed, long_tail)
    source = getattr(sys.modules[function.func.__module__], "__file__", None)
    if cache is None or source is None:  # a function typed into a notebook has no file
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
    """The content of each file that holds a partition's code.

    The name of the cache file depends on it, so edited code gets a new cache file.
    """
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
    """Apply ``long_tail`` unless ``rho`` is None, then partition the samples that are left.

    Returns each client's sorted indices into ``labels``.
    """
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
    if len(clients) != num_clients:
        raise InputError(
            f"partition._target_: makes {len(clients)} parts; should be as many as "
            f"clients.count={num_clients}"
        )
    everything = np.concatenate(clients)
    if len(np.unique(everything)) < len(everything):
        raise InputError("partition._target_: gives a sample to several clients")
    return [np.sort(kept[index]) for index in clients]
