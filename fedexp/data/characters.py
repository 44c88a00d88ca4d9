"""Text as sequences of character ids, with the next characters as classes."""

from typing import Annotated

import numpy as np
from pydantic import Field

from fedexp.core.description import Description
from fedexp.core.token_rows import IGNORED

SequenceLength = Annotated[int, Field(gt=0, le=100_000)]
"""Number of characters or tokens in a sequence; the bound catches typing mistakes."""

_SPOKEN = {"\n": "newline", " ": "space", "\t": "tab"}
"""Names of invisible characters."""


class Alphabet:
    """An alphabet: the i-th character has the id i.

    Args:
        letters: the characters, none of them twice.
    """

    def __init__(self, letters: str) -> None:
        self.letters = letters
        points = _code_points(letters)
        self._order = np.argsort(points)
        self._points = points[self._order]

    def __len__(self) -> int:
        return len(self.letters)

    def encode(self, text: str) -> tuple[np.ndarray, np.ndarray]:
        """The id of each character, [n] int16, and whether the alphabet has it, [n] bool.

        A character outside the alphabet gets the id of the last letter.
        """
        points = _code_points(text)
        place = np.searchsorted(self._points, points).clip(max=len(self) - 1)
        known = self._points[place] == points
        return np.where(known, self._order[place], len(self) - 1).astype(np.int16), known

    def describe(self, name: str, length: int) -> Description:
        """Describe sequences of ``length`` characters whose class is the next character."""
        classes = tuple(_SPOKEN.get(letter, letter) for letter in self.letters)
        return Description(name, (length,), classes, vocabulary=len(self))


def windows(ids: np.ndarray, length: int, stride: int) -> tuple[np.ndarray, np.ndarray]:
    """Sequences [m, length] that start every ``stride`` characters, and the next characters [m].

    Args:
        ids: [n] a text.
        length: characters of a sequence.
        stride: distance between the beginnings of two sequences.
    """
    if len(ids) <= length:
        return np.empty((0, length), ids.dtype), np.empty(0, ids.dtype)
    views = np.lib.stride_tricks.sliding_window_view(ids, length + 1)[::stride]
    return views[:, :-1], views[:, -1]


def each_next(sequences: np.ndarray, following: np.ndarray, stride: int) -> np.ndarray:
    """The next character of every position in the windows of one text, as targets.

    Overlapping windows share characters. Each character is a target in only one window: later
    windows have ``IGNORED`` instead. The targets are [m, length] int64.

    Args:
        sequences: [m, length] from ``windows``.
        following: [m] next characters from ``windows``.
        stride: stride of the windows.
    """
    targets = np.column_stack((sequences[:, 1:], following)).astype(np.int64)
    targets[1:, : max(0, sequences.shape[1] - stride)] = IGNORED
    return targets


def overlapping(length: int, stride: int) -> int:
    """Number of later windows that share a character with a window or with its next character."""
    return length // stride


def _code_points(text: str) -> np.ndarray:
    """Unicode code points, [n] uint32."""
    return np.frombuffer(text.encode("utf-32-le", "surrogatepass"), dtype=np.uint32)
