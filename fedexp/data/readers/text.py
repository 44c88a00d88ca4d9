"""Next-character prediction on one text file; the roles that speak in it are the users."""

import re
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Literal

import numpy as np
import torch
from pydantic import PositiveInt
from torch import Tensor

from fedexp.config.compatibility.traits import OVERLAPPING_SAMPLES
from fedexp.core.description import Description
from fedexp.core.randomness import numpy_generator
from fedexp.data.dataset import Dataset, Source, Split
from fedexp.data.preparations.text import Characters
from fedexp.data.readers.characters import SequenceLength, each_next, overlapping, windows
from fedexp.data.train_test import SplitSeed, TestFraction, UserSplit, separate_users
from fedexp.errors import InputError
from fedexp.rounding import rounded_down

_ROLE = re.compile(r"(?:\A|^[ \t]*\n)([^\n:]*[^\s:][^\n:]*):[ \t]*$", re.MULTILINE)
"""Matches a line ``NAME:`` at the beginning of the file or after an empty line."""

Windows = tuple[np.ndarray, np.ndarray]
"""Sequences [m, length] of character ids, and the next character [m] after each sequence."""


@dataclass
class Text(Source):
    """Sequences of characters from a plain text (UTF-8), and the next characters as targets.

    A line ``NAME:`` at the beginning of the file or after an empty line starts a speech of the role
    NAME. The speeches of a role form one text, joined by line breaks. Text before the first role is
    dropped. The alphabet has all characters of the speeches.

    Args:
        path: the file; ``~`` is expanded.
        sequence_length: number of characters in a sequence.
        stride: number of characters between the beginnings of two consecutive sequences.
        targets: with ``next`` the target of a sequence is the character after it. With ``each`` the
            target of each character is the next character; where sequences overlap, a character is
            a target in only one of them.
        min_samples: smallest number of a role's sequences, with ``split=within`` of its training
            sequences. Roles with fewer sequences are left out; with ``within``, so are roles
            without a test sequence.
        split: with ``within`` the end of each role's text is for testing. With ``users`` a share of
            the roles, drawn at random, is for testing.
        test_fraction: share for testing: of each role's characters, or with ``split=users`` of the
            roles.
        split_seed: seed of the draw of roles; independent of the run's seed.

    Raises:
        InputError: the file cannot be read or has too little text.
    """

    unread_if = MappingProxyType({"split_seed": {"split": ("within",)}})

    path: Path
    sequence_length: SequenceLength
    stride: PositiveInt
    targets: Literal["next", "each"]
    min_samples: PositiveInt
    split: UserSplit
    test_fraction: TestFraction
    split_seed: SplitSeed

    def __post_init__(self) -> None:
        self.path = self.path.expanduser()
        if overlapping(self.sequence_length, self.stride):
            self.traits = self.traits | {OVERLAPPING_SAMPLES}

    def describe(self) -> Description:
        """Describe the sequences by their alphabet and length."""
        about = self._characters.describe(self.path.stem)
        return replace(about, per_token=self.targets == "each")

    def load(self, cache: Path) -> Dataset:
        """Load the dataset; nothing is cached."""
        texts = {role: self._characters.encode(text)[0] for role, text in self._speeches.items()}
        parts = self._within(texts) if self.split == "within" else self._by_users(texts)
        train, test = (self._joined(part) for part in parts)
        return Dataset(self.describe(), train, test, raw=self._characters)

    @cached_property
    def _speeches(self) -> dict[str, str]:
        """The name of each role, with the text of all its speeches."""
        try:
            text = self.path.read_text(encoding="utf-8-sig")
        except OSError as error:
            raise InputError(
                f"data.path={self.path}: cannot be read ({error.strerror}); it should be a text "
                "file in which a line NAME: after an empty line begins a speech of NAME"
            ) from error
        except UnicodeDecodeError as error:
            raise InputError(f"data.path={self.path}: is not text in UTF-8 ({error})") from error
        speeches: dict[str, list[str]] = {}
        _, *pieces = _ROLE.split(text)
        for role, speech in zip(pieces[::2], pieces[1::2], strict=True):
            speeches.setdefault(role.strip(), []).append(speech.strip())
        roles = {role: "\n".join(filter(None, said)) for role, said in speeches.items()}
        roles = {role: said for role, said in roles.items() if said}
        if not roles:
            raise InputError(
                f"data.path={self.path}: has no speeches; a line NAME: at the beginning or "
                "after an empty line begins a speech"
            )
        return roles

    @cached_property
    def _characters(self) -> Characters:
        alphabet = "".join(sorted(set().union(*self._speeches.values())))
        return Characters(alphabet, self.sequence_length)

    def _within(self, texts: dict[str, np.ndarray]) -> tuple[dict[str, Windows], ...]:
        """The training and test sequences of each role that has enough sequences."""
        train, test = {}, {}
        for role, ids in texts.items():
            cut = len(ids) - rounded_down(self.test_fraction, len(ids))
            before, after = self._windows(ids[:cut]), self._windows(ids[cut:])
            if len(before[1]) >= self.min_samples and len(after[1]):
                train[role], test[role] = before, after
        if not train:
            raise self._too_short(
                f"no role has {self.min_samples} training sequences and a test sequence"
            )
        return train, test

    def _by_users(self, texts: dict[str, np.ndarray]) -> tuple[dict[str, Windows], ...]:
        """The sequences of each training role, and of each test role."""
        found = {role: self._windows(ids) for role, ids in texts.items()}
        roles = {role: own for role, own in found.items() if len(own[1]) >= self.min_samples}
        if len(roles) < 2:
            raise self._too_short(
                f"data.split=users needs two roles with {self.min_samples} sequences"
            )
        generator = numpy_generator(self.split_seed, "text_split")
        return separate_users(roles, self.test_fraction, generator)

    def _windows(self, ids: np.ndarray) -> Windows:
        return windows(ids, self.sequence_length, self.stride)

    def _joined(self, part: dict[str, Windows]) -> Split:
        inputs, labels = zip(*part.values(), strict=True)
        return Split(
            torch.from_numpy(np.concatenate(inputs)),
            torch.from_numpy(np.concatenate(labels).astype(np.int64)),
            np.repeat(list(part), [len(each) for each in labels]),
            overlapping(self.sequence_length, self.stride),
            self._targets(part) if self.targets == "each" else None,
        )

    def _targets(self, part: dict[str, Windows]) -> Tensor:
        """The target of each character of the sequences."""
        return torch.from_numpy(np.concatenate([each_next(*w, self.stride) for w in part.values()]))

    def _too_short(self, reason: str) -> InputError:
        return InputError(
            f"data.min_samples={self.min_samples}: {reason} (data.path={self.path}); use a "
            "smaller data.min_samples, data.sequence_length or data.stride"
        )
