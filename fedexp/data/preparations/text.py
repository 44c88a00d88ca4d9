"""The preparation of text: sequences of characters, all of one length."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedexp.core.description import SPOKEN, Description
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
        return self._ids(raw)[0]

    def encode(self, text: str) -> tuple[np.ndarray, np.ndarray]:
        """The ids of a text's characters [n] int16, and whether the alphabet has each [n] bool."""
        points = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), dtype=np.uint32)
        ids, known = self._ids(torch.from_numpy(points.astype(np.int64)))
        return ids.short().numpy(), known.numpy()

    def describe(self, name: str) -> Description:
        """Describe sequences of ``length`` characters whose class is the next character."""
        classes = tuple(SPOKEN.get(letter, letter) for letter in self.alphabet)
        return Description(name, self.shape, classes, vocabulary=len(classes))

    def _ids(self, points: Tensor) -> tuple[Tensor, Tensor]:
        """The ids of code points, and whether the alphabet has each."""
        letters = torch.tensor([ord(letter) for letter in self.alphabet], device=points.device)
        ordered, order = letters.sort()
        place = torch.searchsorted(ordered, points).clamp(max=len(ordered) - 1)
        known = ordered[place] == points
        return torch.where(known, order[place], len(ordered) - 1), known
