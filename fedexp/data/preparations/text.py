"""The preparation of text: sequences of characters, all of one length."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fedexp.data.preparations.preparation import Preparation
from fedexp.errors import InputError


@dataclass(frozen=True)
class Characters(Preparation):
    """Turns characters into ids: their positions in the alphabet, counted from 0.

    The raw tensor has Unicode code points. A character outside the alphabet gets the id of the
    alphabet's last letter.

    Attributes:
        alphabet: the characters, each of them once.
        length: L, the number of characters in a sequence.
    """

    dtype = torch.int64

    alphabet: str
    length: int

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one sequence of L characters: [L]."""
        return (self.length,)

    @property
    def form(self) -> str:
        """The raw inputs in words: type and shape."""
        return f"text as Unicode code points [n, {self.length}], int64"

    def read(self, raw: Any) -> Tensor:
        """Read a list of texts; of each text, only the last ``length`` characters are used."""
        texts = [raw] if isinstance(raw, str) else list(raw)
        if not texts or not all(isinstance(each, str) for each in texts):
            raise InputError("predict: takes a list of texts")
        if short := [each for each in texts if len(each) < self.length]:
            raise InputError(
                f"predict: takes texts of at least {self.length} characters; one has "
                f"{len(short[0])}"
            )
        return torch.tensor([[ord(letter) for letter in each[-self.length :]] for each in texts])

    def prepare(self, raw: Tensor) -> Tensor:
        """Turn the code points of n sequences of L characters into the characters' ids [n, L]."""
        letters = torch.tensor([ord(letter) for letter in self.alphabet], device=raw.device)
        points, order = letters.sort()
        place = torch.searchsorted(points, raw).clamp(max=len(points) - 1)
        return torch.where(points[place] == raw, order[place], len(points) - 1)
