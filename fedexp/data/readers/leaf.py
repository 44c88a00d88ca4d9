"""FEMNIST and Shakespeare in the format of LEAF's scripts (Caldas et al., 2018)."""

import json
import logging
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar

import numpy as np
import torch

from fedexp.config.compatibility.traits import OVERLAPPING_SAMPLES
from fedexp.core.description import Description
from fedexp.core.randomness import numpy_generator
from fedexp.data.cache import Arrays, cached_arrays, fingerprint
from fedexp.data.dataset import Dataset, Deviations, Means, Source, Split, check_constants
from fedexp.data.preparations.text import Characters
from fedexp.data.readers.characters import overlapping
from fedexp.data.readers.image_statistics import normalisation
from fedexp.data.train_test import SplitSeed, TestFraction, UserSplit, check_users, separate_users
from fedexp.errors import InputError, readable
from fedexp.rounding import rounded_down

Samples = tuple[np.ndarray, np.ndarray]
"""A user's inputs [m, ...] and labels [m]."""

Decode = Callable[[Sequence[Any], Sequence[Any]], Samples]
"""Turns a user's JSON lists "x" and "y" into arrays; raises ValueError if they do not fit."""

LOGGER = logging.getLogger(__name__)

LENGTH = 80
"""Number of characters in a sequence of Shakespeare."""

CHARACTERS = Characters(
    "\n !\"&'(),-.0123456789:;>?ABCDEFGHIJKLMNOPQRSTUVWXYZ[]abcdefghijklmnopqrstuvwxyz}", LENGTH
)
"""Sequences of LEAF's 80 characters, in the order of their ids."""

DIGITS_AND_LETTERS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
"""FEMNIST's 62 classes."""

ARRAYS = (
    *(f"{s}_{kind}" for s in ("train", "test") for kind in ("inputs", "labels", "users")),
    "user_names",
)
"""Names of the arrays in a dataset's cache file."""


def find_files(root: Path, name: str) -> tuple[list[Path], list[Path]]:
    """Find the JSON files in ``root``/train and ``root``/test, or else in ``root``/all_data.

    Return the files of train/ and of test/. If LEAF has not split the samples, return the files of
    all_data/ and an empty list.

    Raises:
        InputError: there are no files; the message says how to make them.
    """
    train, test, whole = (
        sorted((root / folder).glob("*.json")) for folder in ("train", "test", "all_data")
    )
    if train and test:
        return train, test
    if whole:
        return whole, []
    raise InputError(
        f"data.root={root}: holds neither train/*.json and test/*.json nor all_data/*.json; clone "
        f"https://github.com/TalwalkarLab/leaf, run ./preprocess.sh -s niid --sf 1.0 -k 0 "
        f"-t sample in its data/{name}, and set data.root to its data/{name}/data"
    )


def read_users(paths: Iterable[Path], decode: Decode) -> dict[str, Samples]:
    """Read each user's samples, in the order of the files; a user may be in several files.

    Raises:
        InputError: a file cannot be read or does not have LEAF's format.
    """
    found: dict[str, list[Samples]] = {}
    for path in paths:
        for user, samples in _users_of(path, decode):
            found.setdefault(user, []).append(samples)
    return {
        user: (np.concatenate([x for x, _ in parts]), np.concatenate([y for _, y in parts]))
        for user, parts in found.items()
    }


def _users_of(path: Path, decode: Decode) -> Iterator[tuple[str, Samples]]:
    """Yield (user, samples) for each user in one file that has samples."""
    try:
        with readable(path):
            content = json.loads(path.read_bytes())
        if len(set(content["users"])) < len(content["users"]):
            raise ValueError("it lists a user twice")
        for user in content["users"]:
            data = content["user_data"][user]
            if len(data["x"]) != len(data["y"]):
                raise ValueError(f"user {user} has {len(data['x'])} x and {len(data['y'])} y")
            if data["y"]:
                yield user, _decoded(user, data, decode)
    except InputError:
        raise
    except KeyError as error:
        raise InputError(f"data.root: {path} is not a LEAF file: it has no {error}") from error
    except (ValueError, TypeError, RecursionError) as error:
        reason = str(error).partition("\n")[0]
        raise InputError(f"data.root: {path} is not a LEAF file: {reason}") from error


def _decoded(user: str, data: dict[str, Any], decode: Decode) -> Samples:
    """Decode a user's samples. If they do not fit, raise a ValueError that names the user."""
    try:
        return decode(data["x"], data["y"])
    except (ValueError, TypeError, OverflowError) as error:
        raise ValueError(f"user {user}: {error}") from error


@dataclass
class Leaf(Source):
    """A LEAF dataset: folders of JSON files with the samples of each user.

    ``root`` holds train/ and test/, which LEAF has split, or all_data/, which this class splits.

    Args:
        root: LEAF's folder data/<name>/data, or a copy; ``~`` is expanded. Nothing is written
            there.
        test_fraction: for all_data/, the share for testing: of each user's samples, or with
            ``split=users`` of the users.
        split: ``within`` splits each user's samples and leaves out users with too few samples for
            both splits. ``users`` draws whole users for testing; existing folders train/ and test/
            must then have different users.
        split_seed: seed of the split for testing; independent of the run's seed.

    Raises:
        InputError: ``describe`` raises it if there are no files, ``load`` if a file does not have
            LEAF's format.
    """

    name: ClassVar[str]
    """LEAF's name of the dataset."""

    about: ClassVar[Description]

    root: Path
    test_fraction: TestFraction
    split: UserSplit
    split_seed: SplitSeed

    def __post_init__(self) -> None:
        self.root = self.root.expanduser()

    def describe(self) -> Description:
        """Shape and classes, the same for all files."""
        find_files(self.root, self.name)
        return self.about

    def load(self, cache: Path) -> Dataset:
        """Load the dataset; decoded samples are cached in ``cache``/leaf."""
        files = find_files(self.root, self.name)
        options = (self.test_fraction, self.split, self.split_seed)
        found = [(path.resolve(), path.stat()) for path in files[0] + files[1]]
        state = [(str(path), status.st_size, status.st_mtime_ns) for path, status in found]
        path = cache / "leaf" / f"{fingerprint(self.name, *options, state)}.npz"
        arrays = cached_arrays(path, ARRAYS, lambda: self._read(files))
        dataset = self.dataset(*(self._part(arrays, name) for name in ("train", "test")))
        return replace(dataset, user_names=tuple(arrays["user_names"].tolist()))

    @abstractmethod
    def decode(self, x: Sequence[object], y: Sequence[object]) -> Samples:
        """Turn a user's lists ``x`` and ``y`` into inputs and labels.

        Raises:
            ValueError: a value does not have the dataset's format.
        """

    @abstractmethod
    def separate(self, samples: int, user: int) -> tuple[np.ndarray, np.ndarray]:
        """Split the samples of user number ``user``; return training and test positions."""

    @abstractmethod
    def dataset(self, train: Split, test: Split) -> Dataset:
        """Make the dataset from splits of decoded samples."""

    def _read(self, files: tuple[list[Path], list[Path]]) -> Arrays:
        """Read the files; users are numbered in the order of the files."""
        train, test = (read_users(paths, self.decode) for paths in files)
        if files[1]:
            check_users(self.split, train, test, str(self.root))
        elif self.split == "users":
            generator = numpy_generator(self.split_seed, "leaf_users")
            train, test = separate_users(train, self.test_fraction, generator)
        else:
            train, test = self._separate_all(train)
        if not (train and test):
            raise InputError(f"data.root={self.root}: no user has training and test samples")
        numbers = {user: number for number, user in enumerate({**train, **test})}
        names = {"user_names": np.array(list(numbers))}
        return _joined("train", train, numbers) | _joined("test", test, numbers) | names

    def _separate_all(
        self, users: dict[str, Samples]
    ) -> tuple[dict[str, Samples], dict[str, Samples]]:
        """The training and the test samples of the users that have enough samples for both."""
        train, test = {}, {}
        for number, (user, (x, y)) in enumerate(users.items()):
            for_training, for_testing = self.separate(len(y), number)
            if len(for_training) and len(for_testing):
                train[user] = x[for_training], y[for_training]
                test[user] = x[for_testing], y[for_testing]
        return train, test

    def _part(self, arrays: Arrays, name: str) -> Split:
        inputs, labels, users = (arrays[f"{name}_{kind}"] for kind in ("inputs", "labels", "users"))
        return Split(torch.from_numpy(inputs), torch.from_numpy(labels), users)


@dataclass
class Femnist(Leaf):
    """Handwritten digits and letters, 28x28, 62 classes; about 3,500 writers are the users.

    The grey values, multiples of 1/255 in LEAF's files, become uint8. With all_data/,
    ``split=within`` draws a share of each writer's samples for testing, as LEAF does.

    Args:
        root: see ``Leaf``.
        test_fraction: see ``Leaf``.
        split: see ``Leaf``.
        split_seed: see ``Leaf``.
        mean: mean of the grey values in [0, 1]; None measures it on the training images.
        std: standard deviation of the grey values in [0, 1]; None measures it on the training
            images.
    """

    name = "femnist"
    about = Description("femnist", (1, 28, 28), tuple(DIGITS_AND_LETTERS))

    mean: Means | None
    std: Deviations | None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_constants(self.mean, self.std, channels=1)

    def decode(self, x: Sequence[object], y: Sequence[object]) -> Samples:
        """Turn a user's samples into uint8 images [m, 1, 28, 28] and labels [m]."""
        images = np.asarray(x, dtype=np.float64)
        if images.shape[1:] != (28 * 28,) or not ((images >= 0) & (images <= 1)).all():
            raise ValueError("an x of FEMNIST is 784 numbers from 0 to 1")
        if unknown := [each for each in y if each not in range(len(DIGITS_AND_LETTERS))]:
            raise ValueError(f"a y of FEMNIST is a whole number from 0 to 61, not {unknown[0]}")
        pixels = (images * 255).round().astype(np.uint8)
        return pixels.reshape(-1, 1, 28, 28), np.asarray(y, dtype=np.int64)

    def separate(self, samples: int, user: int) -> tuple[np.ndarray, np.ndarray]:
        """Draw the test samples at random."""
        order = numpy_generator(self.split_seed, "leaf_split", user).permutation(samples)
        number = max(1, rounded_down(1 - self.test_fraction, samples))
        return np.sort(order[:number]), np.sort(order[number:])

    def dataset(self, train: Split, test: Split) -> Dataset:
        """Make the dataset, with the configured or else the measured mean and std."""
        constants = normalisation(train.inputs.numpy(), self.mean, self.std)
        return Dataset(self.about, train, test, *constants)


class Shakespeare(Leaf):
    """Next-character prediction after 80 characters; the roles of the plays are the users.

    In LEAF, a sequence of 80 characters begins at each character of a role's text. With all_data/
    and ``split=within``, a role's last sequences are for testing. The 80 sequences before the test
    sequences share characters with them and are dropped. A character outside LEAF's alphabet gets
    the id of the last letter, as in LEAF's code.

    Args:
        root: see ``Leaf``.
        test_fraction: see ``Leaf``.
        split: see ``Leaf``.
        split_seed: seed of the draw of users; ``within`` draws nothing.
    """

    unread_if = MappingProxyType({"split_seed": {"split": ("within",)}})

    traits = Leaf.traits | {OVERLAPPING_SAMPLES}
    name = "shakespeare"
    about = CHARACTERS.describe("shakespeare")

    def decode(self, x: Sequence[object], y: Sequence[object]) -> Samples:
        """Character ids of a user's m sequences, uint8 [m, 80], and next characters, int64 [m]."""
        if not all(isinstance(each, str) and len(each) == LENGTH for each in x):
            raise ValueError(f"an x of Shakespeare is a text of {LENGTH} characters")
        if not all(isinstance(each, str) and len(each) == 1 for each in y):
            raise ValueError("a y of Shakespeare is one character")
        (ids, known), (labels, _) = (CHARACTERS.encode("".join(map(str, each))) for each in (x, y))
        if not known.all():
            LOGGER.warning("%d characters are not in LEAF's alphabet", (~known).sum())
        return ids.astype(np.uint8).reshape(-1, LENGTH), labels.astype(np.int64)

    def separate(self, samples: int, user: int) -> tuple[np.ndarray, np.ndarray]:
        """Use the last sequences for testing; drop earlier sequences that overlap with these."""
        position = np.arange(samples)
        begin = max(1, rounded_down(1 - self.test_fraction, samples))
        return position[: max(0, begin - LENGTH)], position[begin:]

    def dataset(self, train: Split, test: Split) -> Dataset:
        """Make the dataset with ids as int16, because uint8 means images."""
        overlap = overlapping(LENGTH, stride=1)
        train, test = (
            Split(split.inputs.short(), split.labels, split.users, overlap)
            for split in (train, test)
        )
        return Dataset(self.about, train, test, raw=CHARACTERS)


def _joined(name: str, users: dict[str, Samples], numbers: dict[str, int]) -> Arrays:
    """Join the users' samples into the arrays of one split."""
    return {
        f"{name}_inputs": np.concatenate([x for x, _ in users.values()]),
        f"{name}_labels": np.concatenate([y for _, y in users.values()]),
        f"{name}_users": np.repeat(
            np.array([numbers[user] for user in users]), [len(y) for _, y in users.values()]
        ),
    }
