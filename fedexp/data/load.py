"""Load all clients' data: take a subset, partition it, and make test and validation splits."""

import logging
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch

from fedexp.config.schema import Config
from fedexp.core.randomness import numpy_generator
from fedexp.data import consistency
from fedexp.data.cache import remove_leftovers
from fedexp.data.client_names import called, client_names
from fedexp.data.configured_partition import partition_indices
from fedexp.data.dataset import Dataset, Describer, Source
from fedexp.data.drawn import DrawnData, DrawnSource
from fedexp.data.feature_shift import shifted
from fedexp.data.federated import FederatedData
from fedexp.data.split import class_counts, share, stratified
from fedexp.data.user_split import match_users, validation_split
from fedexp.errors import InputError
from fedexp.rounding import rounded_down
from fedexp.state.abandoned import remove_abandoned_folders

LOGGER = logging.getLogger(__name__)

_Indices = list[np.ndarray]
"""For each client, sorted positions in a split."""


def held_out_clients(clients: Sequence[np.ndarray], share: float, seed: int) -> list[int]:
    """Draw a share of the clients that have data; return their numbers in ascending order.

    Args:
        clients: for each client, the positions of its training samples.
        share: share of the clients, at least 0 and below 1; their number is rounded down.
        seed: seed of the run.

    Raises:
        InputError: a positive ``share`` would draw no client, or every client that has data.
    """
    if not share:
        return []
    holders = [client for client, index in enumerate(clients) if len(index)]
    count = rounded_down(share, len(holders))
    if not 0 < count < len(holders):
        raise InputError(
            f"clients.held_out={share:g}: would hold out {count} of {len(holders)} clients with "
            "data; should be a share that leaves some on both sides"
        )
    drawn = numpy_generator(seed, "held_out").choice(holders, count, replace=False)
    found: list[int] = sorted(drawn.tolist())
    return found


def load_data(config: Config, source: Describer, device: torch.device) -> FederatedData:
    """Load the dataset, divide it among the clients, and hold out the validation samples.

    The test splits are made before the validation splits, so they do not depend on
    ``data.validation``. A ``DrawnSource`` draws a client's samples when they are needed. Before
    loading, the function removes old temporary files of killed processes from the cache and from
    the system's temporary folder.

    Args:
        config: the checked config.
        source: the dataset's reader, or a ``DrawnSource``.
        device: the device of the samples.

    Raises:
        InputError: the dataset cannot be loaded or split as the config says.
    """
    cache = config.data.cache.expanduser()
    remove_leftovers(cache)
    remove_abandoned_folders()
    if isinstance(source, DrawnSource):
        return DrawnData(source, config.clients.count, config.seed, device)
    assert isinstance(source, Source)
    dataset = source.load(cache)
    consistency.check(dataset)
    if config.data.subset is not None:
        kept = stratified(dataset.train.strata, config.data.subset, config.seed)
        dataset = replace(dataset, train=dataset.train.take(kept))
    clients = partition_indices(
        config.partition.node,
        dataset.train.labels.numpy(),
        dataset.train.users,
        config.clients.count,
        config.seed,
        cache,
        config.partition.long_tail,
    )
    names = client_names(dataset.train.users, clients, dataset.user_names)
    dataset, tests = _test_splits(dataset, clients, config)
    shift = config.partition.shift
    dataset = shifted(dataset, clients, tests, shift.kinds, shift.strength, config.seed)
    train, validation = validation_split(
        dataset.train, clients, config.data.validation, config.seed
    )
    held_out = held_out_clients(train, config.clients.held_out, config.seed)
    _report_empty_clients(train, config.clients.per_round, held_out, names)
    augment, seed = config.data.augment, config.seed
    return FederatedData(dataset, train, tests, augment, seed, device, validation, held_out, names)


def _test_splits(dataset: Dataset, clients: _Indices, config: Config) -> tuple[Dataset, _Indices]:
    """Give each client its test samples; return the dataset and each client's test positions.

    The test samples of class c go to the clients in proportion to their training samples of class
    c, and those of a class that no client has go to no client. With ``test_split=users``, users
    take the place of classes, and the returned dataset lacks test samples that no client gets. If
    the test classes are unseen (FC100), no client gets test samples.
    """
    if dataset.description.unseen_classes:  # no client has samples of these classes
        return dataset, [np.empty(0, dtype=np.int64)] * len(clients)
    if config.partition.test_split == "users":
        return match_users(dataset, clients, config.seed)
    counts = class_counts(dataset.train.strata, clients, dataset.description.num_classes)
    return dataset, share(dataset.test.strata, counts, numpy_generator(config.seed, "test_split"))


def _report_empty_clients(
    train: _Indices, per_round: int, held_out: Sequence[int], names: Sequence[str] | None
) -> None:
    """Warn if some clients have no data, and log the clients that are held out."""
    if held_out:
        LOGGER.info(
            "clients.held_out: these never train: %s",
            ", ".join(called(client, names) for client in held_out),
        )
    holders = sum(len(index) > 0 for index in train)
    if holders < len(train):
        LOGGER.warning(
            "%d of %d clients have data; the others are never chosen, so %d take part in a round",
            holders,
            len(train),
            min(holders - len(held_out), per_round),
        )
