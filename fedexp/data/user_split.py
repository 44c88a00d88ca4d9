"""Test and validation splits by user."""

import logging
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from fedexp.core.randomness import numpy_generator
from fedexp.data.client_names import client_names, listed
from fedexp.data.dataset import Dataset, Split
from fedexp.data.split import by_owner, class_counts, hold_out, share
from fedexp.errors import InputError
from fedexp.rounding import rounded_down

LOGGER = logging.getLogger(__name__)


def match_users(
    dataset: Dataset, clients: Sequence[np.ndarray], seed: int
) -> tuple[Dataset, list[np.ndarray]]:
    """Give every client the test samples of its users.

    If several clients share a user, the user's test samples are dealt to these clients at random,
    in proportion to their numbers of training samples of this user. Test samples of users without a
    client are dropped.

    Args:
        dataset: the dataset, with the user of each sample.
        clients: for each client, its indices into the training split.
        seed: seed of the dealing of a shared user's test samples.

    Returns:
        The dataset with the remaining test samples in their original order, and for each client the
        sorted indices of its test samples.

    Raises:
        InputError: the dataset has no user ids, or no user is in both splits.
    """
    train, test = dataset.train, dataset.test
    if train.users is None or test.users is None:
        raise InputError(
            "partition.test_split=users: this dataset has no user ids; use classes instead"
        )
    names, user = np.unique(np.concatenate([train.users, test.users]), return_inverse=True)
    counts = class_counts(user[: len(train)], clients, len(names))
    tests = share(user[len(train) :], counts, numpy_generator(seed, "test_split"))
    kept = np.sort(np.concatenate(tests))
    if not len(kept):
        raise InputError(
            "partition.test_split=users: the test split has no samples of the clients' users; use "
            "classes instead, or data with data.split=within"
        )
    pairs = enumerate(zip(clients, tests, strict=True))
    if without := [client for client, (index, own) in pairs if len(index) > 0 == len(own)]:
        called = listed(without, client_names(train.users, clients, dataset.user_names))
        LOGGER.warning("%d clients have no test samples of their own: %s", len(without), called)
    return replace(dataset, test=test.take(kept)), [np.searchsorted(kept, own) for own in tests]


def validation_split(
    train: Split, clients: Sequence[np.ndarray], fraction: float, seed: int
) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Split each client's samples into training and validation samples.

    If samples overlap (``Split.overlap``), ``hold_out_ends`` splits them, otherwise ``hold_out``.

    Raises:
        InputError: ``fraction`` is positive and no client holds out a sample.
    """
    if train.overlap and train.users is not None:
        kept, held = hold_out_ends(train.users, clients, fraction, train.overlap)
        reason = "no user has enough samples: those that overlap with held-out ones are dropped"
        if fraction >= 0.5:
            reason = (
                "samples overlap: a user trains on at least as many as it holds out, and those "
                "between are dropped; should be below 0.5"
            )
    else:
        kept, held = hold_out(train.strata, clients, fraction, seed)
        reason = "no client has enough samples: one of each of its classes must stay for training"
    if fraction and not any(map(len, held)):
        raise InputError(f"data.validation={fraction}: {reason}")
    return kept, held


def hold_out_ends(
    users: np.ndarray, clients: Sequence[np.ndarray], fraction: float, overlap: int
) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Hold out each user's last samples for validation, without overlap with training samples.

    Of a user with n samples, the last floor(fraction * n) are for validation. The ``overlap``
    samples before the validation samples share content with them and are dropped. A user that would
    have fewer training than validation samples holds out no samples.

    Args:
        users: [n] user of each sample; a user's samples are in their natural order.
        clients: for each client, the sorted positions of its samples in ``users``.
        fraction: share of each user's samples, at least 0 and below 1.
        overlap: see ``Split``.

    Returns:
        For each client, the sorted indices of its training samples and of its held-out samples.
    """
    for_training, for_validation = np.ones(len(users), bool), np.zeros(len(users), bool)
    names, user = np.unique(users, return_inverse=True)
    for index in by_owner(user, len(names)):
        end = len(index) - rounded_down(fraction, len(index))
        if end < len(index) and end - overlap >= len(index) - end:
            for_training[index[end - overlap :]] = False
            for_validation[index[end:]] = True
    return (
        [index[for_training[index]] for index in clients],
        [index[for_validation[index]] for index in clients],
    )
