"""The partitioners of flwr-datasets, the library of the Flower framework."""

import inspect
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr
from io import StringIO
from logging import getLogger
from textwrap import shorten
from typing import Annotated, Any

import numpy as np
from pydantic import AfterValidator

from fedexp.config.build import Node, build, locate
from fedexp.config.optional import optional
from fedexp.core.randomness import key, numpy_generator
from fedexp.data.readers.hugging_face_files import quiet
from fedexp.errors import InputError

LOGGER = getLogger(__name__)

_KEY = "partition.partitioner"
_LABEL, _USER, _INDEX = "label", "user", "index"
"""Columns of the dataset that a partitioner receives."""


def _check(node: Node) -> Node:
    """Raise InputError if the node does not name a partitioner and its arguments."""
    _constructor(node)
    return node


def flwr(
    labels: np.ndarray,
    users: np.ndarray | None,
    num_clients: int,
    seed: int,
    partitioner: Annotated[Node, AfterValidator(_check)],
) -> list[np.ndarray]:
    """Partition the samples with any class of ``flwr_datasets.partitioner``.

    The partitioner receives a dataset with the columns ``label`` and, if users are known, ``user``.
    The rows are shuffled, as in Flower. The partitioner's argument ``num_partitions`` is N. Unless
    the config sets them, ``partition_by`` is ``label``, and ``seed`` follows from the run's seed.

    Args:
        labels: [n] class of each sample.
        users: [n] user of each sample, None if unknown.
        num_clients: N; the partitioner must make N partitions.
        seed: seed of the run; it determines the order of the rows and the partitioner's seed.
        partitioner: config node with ``_target_`` and the partitioner's arguments.

    Raises:
        InputError: flwr-datasets is not installed, or the partitioner fails.
    """
    constructor = _constructor(partitioner)
    order = numpy_generator(seed, "partition").permutation(len(labels))
    supplied: dict[str, Any] = {"num_partitions": num_clients, "partition_by": _LABEL}
    supplied["seed"] = key(seed, "flwr") % 2**32
    wanted = inspect.signature(constructor).parameters
    arguments = {
        name: value
        for name, value in supplied.items()
        if name in wanted and name not in constructor.keywords
    }
    try:
        with quiet(), _captured() as caught:
            clients = _indices(constructor(**arguments), labels, users, order)
    except (ArithmeticError, LookupError, TypeError, ValueError) as error:
        reason = " ".join(str(error).split())
        raise InputError(f"{_KEY}: {_name(partitioner)} refuses: {reason}") from error
    _report(partitioner, caught)
    return clients


def _indices(
    partitioner: Any, labels: np.ndarray, users: np.ndarray | None, order: np.ndarray
) -> list[np.ndarray]:
    """Run the partitioner; for each partition, return its sorted indices into ``labels``."""
    from datasets import Dataset

    columns = {_INDEX: order, _LABEL: labels[order]}
    if users is not None:
        columns[_USER] = np.asarray(users)[order].astype(str)
    partitioner.dataset = Dataset.from_dict(columns)
    found = [partitioner.load_partition(number) for number in range(partitioner.num_partitions)]
    if any(_INDEX not in part.column_names for part in found):
        raise ValueError("it divides columns; a partition divides rows")
    return [np.sort(np.asarray(part[:][_INDEX], dtype=np.int64)) for part in found]


def _constructor(node: Node) -> Any:
    """A function that makes the partitioner, with the config's arguments already set."""
    library = optional("partition=flwr", "flwr_datasets.partitioner", "flwr")
    target = locate(f"{_KEY}._target_", node.get("_target_"))
    if not inspect.isclass(target) or not hasattr(target, "load_partition"):
        raise InputError(
            f"{_KEY}._target_={node.get('_target_')}: should be a partitioner, such as "
            "flwr_datasets.partitioner.DirichletPartitioner"
        )
    free = [name for name in ("partition_by", "seed") if name not in node]
    hints = dict.fromkeys(inspect.signature(target).parameters, Any)
    return build(_KEY, node, library.Partitioner, ("num_partitions", *free), hints)


@contextmanager
def _captured() -> Iterator[list[warnings.WarningMessage]]:
    """Record warnings, and hide the partitioner's progress bars, which cannot be turned off."""
    with warnings.catch_warnings(record=True) as caught, redirect_stderr(StringIO()):
        warnings.simplefilter("always")
        yield caught


def _report(node: Node, caught: list[warnings.WarningMessage]) -> None:
    """Log each ``UserWarning`` of the partitioner in one line.

    If warnings differ only in their numbers, the last of them is logged.
    """
    texts = [str(each.message) for each in caught if each.category is UserWarning]
    for text in {re.sub(r"\d+", "", text): text for text in texts}.values():
        LOGGER.warning("%s: %s", _name(node), shorten(text, 200, placeholder=" ..."))


def _name(node: Node) -> str:
    return str(node["_target_"]).rpartition(".")[2]
