"""Which samples are for training and which for testing, of data that do not say it themselves."""

from collections.abc import Sequence
from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from fedexp.core.randomness import numpy_generator
from fedexp.data.split import by_owner
from fedexp.errors import InputError

UserSplit = Literal["within", "users"]
"""``within``: each user has samples of both kinds; ``users``: a user's are all of one kind."""

TestFraction = Annotated[float, Field(gt=0, lt=1)]

Positions = tuple[np.ndarray, np.ndarray]
"""Sorted positions of the samples for training, and of those for testing."""


def divide(
    labels: np.ndarray,
    users: np.ndarray | None,
    split: UserSplit,
    fraction: float,
    seed: int,
) -> Positions:
    """Draw the samples for testing: of each class if the users are unknown, else by ``split``.

    Args:
        labels: [n] class of each sample.
        users: [n] who each sample came from, None if unknown.
        split: whether every user is divided, or the users are.
        fraction: share that is for testing.
        seed: of the draw.

    Raises:
        InputError: nothing would be left for training or for testing.
    """
    if users is None:
        return by_class(labels, fraction, seed)
    return (
        by_user(users, fraction, seed) if split == "users" else within_users(users, fraction, seed)
    )


def by_class(labels: np.ndarray, fraction: float, seed: int) -> Positions:
    """A share of each class of ``labels`` [n] for testing."""
    from sklearn.model_selection import train_test_split  # slow to import

    try:
        train, test = train_test_split(
            np.arange(len(labels)), test_size=fraction, stratify=labels, random_state=seed
        )
    except ValueError as error:
        raise InputError(
            f"data.test_fraction={fraction}: cannot split {len(labels)} samples "
            f"of {len(np.unique(labels))} classes ({error})"
        ) from error
    return np.sort(train), np.sort(test)


def within_users(users: np.ndarray, fraction: float, seed: int) -> Positions:
    """A share of each user's samples for testing, at least one and not all; none of only one."""
    names, user = np.unique(users, return_inverse=True)
    tested = np.zeros(len(users), dtype=bool)
    for number, index in enumerate(by_owner(user, len(names))):
        count = min(max(1, round(fraction * len(index))), len(index) - 1)
        order = numpy_generator(seed, "within_users", number).permutation(index)
        tested[order[:count]] = True
    if not tested.any():
        raise InputError("data.split=within: every user has one sample; take data.split=users")
    return np.flatnonzero(~tested), np.flatnonzero(tested)


def by_user(users: np.ndarray, fraction: float, seed: int) -> Positions:
    """All samples of a share of the users for testing, of the others for training."""
    names = np.unique(users)
    chosen = draw_users(len(names), fraction, numpy_generator(seed, "by_user"))
    tested = np.isin(users, names[chosen])
    return np.flatnonzero(~tested), np.flatnonzero(tested)


def draw_users(count: int, fraction: float, generator: np.random.Generator) -> np.ndarray:
    """Which of ``count`` users are for testing: a share of them, at least one and not all.

    Raises:
        InputError: there is only one user.
    """
    if count < 2:
        raise InputError("data.split=users: needs at least two users; there is one")
    number = min(max(1, round(fraction * count)), count - 1)
    return generator.permutation(count)[:number]


def check_users(split: UserSplit, train: Sequence[str], test: Sequence[str], where: str) -> None:
    """Raise InputError if users should be in one split only and are in both that were found.

    Args:
        split: what is asked for.
        train: users of the training samples.
        test: users of the test samples.
        where: the files that divide the samples, for the message.
    """
    if split == "users" and (both := sorted(set(train) & set(test))):
        raise InputError(
            f"data.split=users: {len(both)} users, such as {both[0]}, are both in the training and "
            f"in the test samples of {where}; take data.split=within"
        )
