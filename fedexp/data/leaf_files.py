"""Find the JSON files of a LEAF dataset and read each user's samples."""

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fedexp.errors import InputError

Samples = tuple[np.ndarray, np.ndarray]
"""A user's inputs [m, ...] and labels [m]."""

Decode = Callable[[Sequence[Any], Sequence[Any]], Samples]
"""Turns a user's JSON lists "x" and "y" into arrays; raises ValueError if they do not fit."""


@dataclass(frozen=True)
class LeafFiles:
    """The JSON files of a LEAF dataset.

    Attributes:
        train: the files of train/, or of all_data/ if LEAF has not split the samples.
        test: the files of test/; empty if LEAF has not split the samples.
    """

    train: tuple[Path, ...]
    test: tuple[Path, ...]

    def state(self) -> list[tuple[str, int, int]]:
        """Path, size and time of change of each file."""
        found = ((path, path.stat()) for path in self.train + self.test)
        return [(str(path.resolve()), status.st_size, status.st_mtime_ns) for path, status in found]


def find_files(root: Path, name: str) -> LeafFiles:
    """Find the JSON files in ``root``/train and ``root``/test, or else in ``root``/all_data.

    Raises:
        InputError: there are no files; the message says how to make them.
    """
    train, test, whole = (
        tuple(sorted((root / folder).glob("*.json"))) for folder in ("train", "test", "all_data")
    )
    if train and test:
        return LeafFiles(train, test)
    if whole:
        return LeafFiles(whole, ())
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
        content = json.loads(path.read_bytes())
        if len(set(content["users"])) < len(content["users"]):
            raise ValueError("it lists a user twice")
        for user in content["users"]:
            data = content["user_data"][user]
            if len(data["x"]) != len(data["y"]):
                raise ValueError(f"user {user} has {len(data['x'])} x and {len(data['y'])} y")
            if data["y"]:
                yield user, _decoded(user, data, decode)
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror})") from error
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
