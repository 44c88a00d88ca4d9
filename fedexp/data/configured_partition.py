"""Compute the partition that a config names, or read it from the file of an earlier run."""

import inspect
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np

from fedexp.config.build import Node, build, locate
from fedexp.config.compatibility.declaration import Declaration, needed
from fedexp.config.compatibility.traits import Need
from fedexp.config.constructed import innermost
from fedexp.config.sources import source_code, targets
from fedexp.data import partitions, split
from fedexp.data.cache import cached_partition, fingerprint
from fedexp.errors import InputError

SUPPLIED = ("labels", "users", "num_samples", "num_clients", "seed")
"""Arguments that a partition function gets from the run; the config sets all others."""


def declared_partition(node: Node, dataset: str) -> Declaration:
    """The traits of data that a config's partition requires; errors name the ``dataset``.

    A function with the argument ``labels`` needs classes. Every function except ``natural`` needs
    the samples of all clients at once. Raises InputError if the config node is wrong.
    """
    function = build("partition", node, list, supplied=SUPPLIED).func
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
    code = None if cache is None else _code(node)
    if cache is None or code is None:
        return compute()
    name = fingerprint(
        code,
        sorted(node.items()),
        labels,
        None if users is None else np.unique(users, return_inverse=True)[1],
        num_clients,
        seed,
        long_tail,
    )
    path = cache / "partitions" / f"{name}.npz"
    return cached_partition(path, len(labels), num_clients, compute)


def _code(node: Node) -> list[object] | None:
    """The code of a partition, on which the name of its cache file depends.

    It consists of the file of each class or function that the node names, the user's own modules
    that these import, and fedexp's partition functions. None if one of them was typed into a
    notebook and has no file.
    """
    config = {"partition": node}
    located = (locate(f"{key}._target_", each) for key, each in targets(config).items())
    made = map(innermost, located)
    files = [getattr(sys.modules[each.__module__], "__file__", None) for each in made]
    own = [Path(each) for each in files if each is not None]
    if len(own) < len(files):
        return None
    of_fedexp = [Path(split.__file__), *sorted(Path(partitions.__file__).parent.glob("*.py"))]
    contents = [path.read_bytes() for path in (*own, *of_fedexp)]
    return [contents, sorted(source_code(config).files.items())]


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
