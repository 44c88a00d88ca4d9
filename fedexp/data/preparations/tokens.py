"""The preparation of token ids: shorter sequences are padded in front."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedexp.data.preparations.preparation import Preparation
from fedexp.errors import InputError


@dataclass(frozen=True)
class Tokens(Preparation):
    """Sequences of token ids of one length.

    Attributes:
        length: L, the number of tokens in a sequence.
        vocabulary: number of different tokens, including the padding.
        padding: id of the padding in front of shorter sequences; longer sequences are cut. None if
            all sequences must have the same length.
    """

    dtype = torch.int64

    length: int
    vocabulary: int
    padding: int | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one sequence of L tokens: [L]."""
        return (self.length,)

    @property
    def form(self) -> str:
        """The raw inputs in words: type, shape and range."""
        padded = "" if self.padding is None else f", padded in front with {self.padding}"
        return f"token ids [n, {self.length}], int64, 0 to {self.vocabulary - 1}{padded}"

    def read(self, raw: Any) -> Tensor:
        """Read n sequences of token ids as the raw tensor [n, L], where L is ``length``."""
        rows = [np.asarray(each) for each in raw]
        if not rows or any(each.ndim != 1 or each.dtype.kind not in "iu" for each in rows):
            raise InputError(f"predict: takes {self.form}; should be lists of whole numbers")
        if self.padding is not None:
            rows = [each[: self.length] for each in rows]
        for number, row in enumerate(rows):
            if len(row) != self.length and (self.padding is None or not len(row)):
                raise InputError(
                    f"predict: takes {self.form}; sequence {number} has {len(row)} tokens"
                )
            if row.min() < 0 or row.max() >= self.vocabulary:
                raise InputError(
                    f"predict: takes {self.form}; sequence {number} has an id outside this range"
                )
        return torch.from_numpy(padded(rows, self.length, self.padding or 0)).long()

    def prepare(self, raw: Tensor) -> Tensor:
        """Return the ids [n, L] unchanged, as int64."""
        return raw.long()


def padded(sequences: Sequence[np.ndarray], length: int, padding: int) -> np.ndarray:
    """Pad sequences in front with ``padding``; return [n, length] int32.

    No sequence may be longer than ``length``.
    """
    rows = np.full((len(sequences), length), padding, dtype=np.int32)
    for row, ids in zip(rows, sequences, strict=True):
        row[length - len(ids) :] = ids
    return rows
