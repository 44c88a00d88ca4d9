"""Text as sequences of character ids, with the next characters as classes."""

from typing import Annotated

import numpy as np
from pydantic import Field

from fedexp.core.token_rows import IGNORED

SequenceLength = Annotated[int, Field(gt=0, le=100_000)]
"""Number of characters or tokens in a sequence; the bound catches typing mistakes."""


def windows(ids: np.ndarray, length: int, stride: int) -> tuple[np.ndarray, np.ndarray]:
    """Cut a text into m sequences [m, length]. Also return the character after each one, [m].

    A sequence begins at every ``stride``-th character.

    Args:
        ids: [n] character ids of the text.
        length: number of characters in a sequence.
        stride: distance between the beginnings of two consecutive sequences.
    """
    if len(ids) <= length:
        return np.empty((0, length), ids.dtype), np.empty(0, ids.dtype)
    views = np.lib.stride_tricks.sliding_window_view(ids, length + 1)[::stride]
    return views[:, :-1], views[:, -1]


def each_next(sequences: np.ndarray, following: np.ndarray, stride: int) -> np.ndarray:
    """The targets [m, length] int64 of one text's sequences: at each position the next character.

    Overlapping sequences share characters. Each character is a target in only one sequence: later
    sequences have ``IGNORED`` in place of this character.

    Args:
        sequences: [m, length] the sequences that ``windows`` returns.
        following: [m] the next characters that ``windows`` returns.
        stride: the stride with which ``windows`` made them.
    """
    targets = np.column_stack((sequences[:, 1:], following)).astype(np.int64)
    targets[1:, : max(0, sequences.shape[1] - stride)] = IGNORED
    return targets


def overlapping(length: int, stride: int) -> int:
    """Number of later sequences that share characters with a sequence or its next character."""
    return length // stride
