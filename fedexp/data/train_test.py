"""Split data that have no test split into training and test samples."""

from collections.abc import Iterable
from typing import Annotated, Literal, TypeVar

import numpy as np
from pydantic import Field

from fedexp.core.randomness import numpy_generator
from fedexp.data.split import by_owner
from fedexp.errors import InputError
from fedexp.rounding import rounded_down

UserSplit = Literal["within", "users"]
"""``within`` splits the samples of each user; ``users`` puts each user into one split only."""

SplitSeed = Annotated[int, Field(ge=0, lt=2**32)]
"""Seed of a split; scikit-learn draws some splits and allows seeds of 32 bits."""

TestFraction = Annotated[float, Field(gt=0, lt=1)]

Held = TypeVar("Held")

Positions = tuple[np.ndarray, np.ndarray]
"""Sorted positions of the training samples and of the test samples."""


def divide(
    labels: np.ndarray,
    users: np.ndarray | None,
    split: UserSplit,
    fraction: float,
    seed: int,
) -> Positions:
    """Draw the test samples from each class, or, if users are known, by the rule ``split``.

    Args:
        labels: [n] class of each sample.
        users: [n] user of each sample; None if unknown.
        split: see ``UserSplit``.
        fraction: share of the samples, or of the users, for testing.
        seed: seed of the draw.

    Raises:
        InputError: a split would be empty, or ``by_class`` cannot split the classes.
    """
    if users is None:
        return by_class(labels, fraction, seed)
    return (
        by_user(users, fraction, seed) if split == "users" else within_users(users, fraction, seed)
    )


def by_class(labels: np.ndarray, fraction: float, seed: int) -> Positions:
    """Draw a share of each class of ``labels`` [n] for testing; its total is rounded up.

    Raises InputError if a class has only one sample, or a split has fewer samples than classes.
    """
    from sklearn.model_selection import train_test_split  # slow to import

    tested = len(labels) - rounded_down(1 - fraction, len(labels))
    try:
        train, test = train_test_split(
            np.arange(len(labels)), test_size=tested, stratify=labels, random_state=seed
        )
    except ValueError as error:
        raise InputError(
            f"data.test_fraction={fraction}: cannot split {len(labels)} samples "
            f"of {len(np.unique(labels))} classes ({error})"
        ) from error
    return np.sort(train), np.sort(test)


def within_users(users: np.ndarray, fraction: float, seed: int) -> Positions:
    """Draw a share of each user's samples, rounded down, for testing.

    At least one sample of each user is for training. If a user has more than one sample, at least
    one is for testing. Raises InputError if every user has only one sample.
    """
    names, user = np.unique(users, return_inverse=True)
    tested = np.zeros(len(users), dtype=bool)
    for number, index in enumerate(by_owner(user, len(names))):
        count = min(max(1, rounded_down(fraction, len(index))), len(index) - 1)
        order = numpy_generator(seed, "within_users", number).permutation(index)
        tested[order[:count]] = True
    if not tested.any():
        raise InputError("data.split=within: every user has one sample; use data.split=users")
    return np.flatnonzero(~tested), np.flatnonzero(tested)


def by_user(users: np.ndarray, fraction: float, seed: int) -> Positions:
    """Draw a share of the users for testing; all other users are for training."""
    names = np.unique(users)
    chosen = draw_users(len(names), fraction, numpy_generator(seed, "by_user"))
    tested = np.isin(users, names[chosen])
    return np.flatnonzero(~tested), np.flatnonzero(tested)


def draw_users(count: int, fraction: float, generator: np.random.Generator) -> np.ndarray:
    """Draw a share of the users 0 to ``count`` - 1 for testing: rounded down, but not 0 or all.

    Raises:
        InputError: there is only one user.
    """
    if count < 2:
        raise InputError("data.split=users: needs at least two users; there is one")
    number = min(max(1, rounded_down(fraction, count)), count - 1)
    return generator.permutation(count)[:number]


def separate_users(
    users: dict[str, Held], fraction: float, generator: np.random.Generator
) -> tuple[dict[str, Held], dict[str, Held]]:
    """Draw a share of the users for testing; return the samples of the others and of these.

    Raises InputError if there is only one user.
    """
    names = list(users)
    tested = {names[place] for place in draw_users(len(names), fraction, generator)}
    train = {name: held for name, held in users.items() if name not in tested}
    return train, {name: held for name, held in users.items() if name in tested}


def check_user_column(split: UserSplit, user: str | None) -> None:
    """Raise InputError if ``split`` is ``users`` but the config names no column of users."""
    if split == "users" and user is None:
        raise InputError("data.split=users: needs data.user, the column of a row's user")


def check_users(
    split: UserSplit, train: Iterable[str] | None, test: Iterable[str] | None, where: str
) -> None:
    """Raise InputError if ``split`` is ``users`` and a user is in both splits.

    Args:
        split: the rule in the config.
        train: users of the training samples; None if unknown.
        test: users of the test samples; None if unknown.
        where: the files that hold the samples, for the message.
    """
    if split != "users" or train is None or test is None:
        return
    if both := sorted({*train} & {*test}):
        raise InputError(
            f"data.split=users: {len(both)} users, such as {both[0]}, are both in the training and "
            f"in the test samples of {where}; use data.split=within"
        )
