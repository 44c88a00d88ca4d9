"""The next characters of one text file, whose speaking roles are its users."""

import re
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from pydantic import NonNegativeInt, PositiveInt
from torch import Tensor

from fedexp.core.description import Description
from fedexp.core.randomness import numpy_generator
from fedexp.data.characters import Alphabet, each_next, overlapping, windows
from fedexp.data.dataset import Dataset, Source, Split
from fedexp.data.train_test import TestFraction, UserSplit, draw_users
from fedexp.errors import InputError

_ROLE = re.compile(r"(?:\A|\n[ \t]*\n)([^\n:]*[^\s:][^\n:]*):[ \t]*(?=\n|\Z)")
"""A line ``NAME:`` at the beginning of the file or after an empty line."""

Windows = tuple[np.ndarray, np.ndarray]
"""Sequences [m, length] and next characters [m]."""


class Text(Source):
    """Sequences of characters of a plain text (UTF-8), and the characters to be guessed.

    A line ``NAME:`` at the beginning of the file or after an empty line starts a speech of this
    role. The speeches of a role are one text, a line break between two. What is before the first
    role belongs to nobody and is left out. The alphabet is what the speeches hold.

    Args:
        path: the file; ``~`` is expanded.
        sequence_length: characters of a sequence.
        stride: characters from the beginning of a sequence to that of the next.
        targets: ``next``: the class of a sequence is the character after it; ``each``: each of its
            characters has the one after it as its target, once where sequences overlap.
        min_samples: training sequences that a role must have; roles with fewer are left out, and
            so are roles too short to test on.
        split: ``within`` each role, whose last ``test_fraction`` of characters is for testing, so
            that no character is in both; or ``users``, a share of the roles drawn for testing.
        test_fraction: share of the characters, or of the roles, that is for testing.
        split_seed: decides which roles are for testing; independent of the run's seed.

    Raises:
        InputError: the file cannot be read, or holds too little.
    """

    def __init__(
        self,
        path: Path,
        sequence_length: PositiveInt,
        stride: PositiveInt,
        targets: Literal["next", "each"],
        min_samples: PositiveInt,
        split: UserSplit,
        test_fraction: TestFraction,
        split_seed: NonNegativeInt,
    ) -> None:
        self.path = path.expanduser()
        self.sequence_length = sequence_length
        self.stride = stride
        self.per_token = targets == "each"
        self.min_samples = min_samples
        self.split = split
        self.test_fraction = test_fraction
        self.split_seed = split_seed

    def describe(self) -> Description:
        """Length of the sequences and the alphabet."""
        about = self._alphabet.describe(self.path.stem, self.sequence_length)
        return replace(about, per_token=self.per_token)

    def load(self, cache: Path) -> Dataset:
        """The dataset; nothing is cached."""
        texts = {role: self._alphabet.encode(text)[0] for role, text in self._speeches.items()}
        parts = self._within(texts) if self.split == "within" else self._by_users(texts)
        train, test = (self._joined(part) for part in parts)
        return Dataset(self.describe(), train, test)

    @cached_property
    def _speeches(self) -> dict[str, str]:
        """Role -> all that it says."""
        try:
            text = self.path.read_text(encoding="utf-8-sig")
        except OSError as error:
            raise InputError(
                f"data.path={self.path}: cannot be read ({error.strerror}); it should be a text "
                "file in which a line NAME: after an empty line begins what NAME says"
            ) from error
        except UnicodeDecodeError as error:
            raise InputError(f"data.path={self.path}: is not text in UTF-8 ({error})") from error
        speeches: dict[str, list[str]] = {}
        _, *found = _ROLE.split(text)
        for role, speech in zip(found[::2], found[1::2], strict=True):
            speeches.setdefault(role.strip(), []).append(speech.strip())
        roles = {role: "\n".join(filter(None, said)) for role, said in speeches.items()}
        roles = {role: said for role, said in roles.items() if said}
        if not roles:
            raise InputError(
                f"data.path={self.path}: no role says anything; a line NAME: at the beginning or "
                "after an empty line begins a speech"
            )
        return roles

    @cached_property
    def _alphabet(self) -> Alphabet:
        return Alphabet("".join(sorted(set().union(*self._speeches.values()))))

    def _within(self, texts: dict[str, np.ndarray]) -> tuple[dict[str, Windows], ...]:
        """Training and test sequences of each role that has enough of both."""
        train, test = {}, {}
        for role, ids in texts.items():
            cut = len(ids) - round(self.test_fraction * len(ids))
            before, after = self._windows(ids[:cut]), self._windows(ids[cut:])
            if len(before[1]) >= self.min_samples and len(after[1]):
                train[role], test[role] = before, after
        if not train:
            raise self._too_short("and a sequence to test on")
        return train, test

    def _by_users(self, texts: dict[str, np.ndarray]) -> tuple[dict[str, Windows], ...]:
        """All sequences of the roles for training, and of those for testing."""
        found = {role: self._windows(ids) for role, ids in texts.items()}
        roles = [role for role, (_, labels) in found.items() if len(labels) >= self.min_samples]
        if len(roles) < 2:
            raise self._too_short("or only one has, of which data.split=users needs two")
        generator = numpy_generator(self.split_seed, "text_split")
        drawn = draw_users(len(roles), self.test_fraction, generator)
        tested = {roles[place] for place in drawn}
        train = {role: found[role] for role in roles if role not in tested}
        return train, {role: found[role] for role in roles if role in tested}

    def _windows(self, ids: np.ndarray) -> Windows:
        return windows(ids, self.sequence_length, self.stride)

    def _joined(self, part: dict[str, Windows]) -> Split:
        inputs, labels = zip(*part.values(), strict=True)
        return Split(
            torch.from_numpy(np.concatenate(inputs)),
            torch.from_numpy(np.concatenate(labels).astype(np.int64)),
            np.repeat(list(part), [len(each) for each in labels]),
            overlapping(self.sequence_length, self.stride),
            self._targets(part) if self.per_token else None,
        )

    def _targets(self, part: dict[str, Windows]) -> Tensor:
        """The target of each character of the sequences."""
        return torch.from_numpy(np.concatenate([each_next(*w, self.stride) for w in part.values()]))

    def _too_short(self, condition: str) -> InputError:
        return InputError(
            f"data.min_samples={self.min_samples}: no role of {self.path} has so many sequences "
            f"{condition}; take a smaller one, or a smaller data.sequence_length or data.stride"
        )
