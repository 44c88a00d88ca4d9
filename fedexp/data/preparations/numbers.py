"""The preparation of numbers, which are standardised or unchanged."""

from dataclasses import dataclass
from math import prod
from typing import Any, Literal

import torch
from torch import Tensor

from fedexp.data.preparations.preparation import Preparation, as_tensor, check_shape
from fedexp.errors import InputError


@dataclass(frozen=True)
class Numbers(Preparation):
    """Standardises each number x to (x - mean) / std, as float32.

    Attributes:
        size: shape of one input.
        mean: one mean for all numbers of an input, or one for each number; 0 by default.
        std: one standard deviation for all numbers of an input, or one for each; 1 by default.
        precision: floating-point type in which the result is computed.
    """

    size: tuple[int, ...]
    mean: tuple[float, ...] = (0.0,)
    std: tuple[float, ...] = (1.0,)
    precision: Literal["float32", "float64"] = "float32"

    @property
    def dtype(self) -> torch.dtype:  # type: ignore[override]
        """Type of the raw tensor."""
        return torch.float64 if self.precision == "float64" else torch.float32

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one input."""
        return self.size

    @property
    def form(self) -> str:
        """The raw inputs in words: type and shape."""
        return f"numbers [n, {', '.join(map(str, self.size))}], {self.precision}"

    def read(self, raw: Any) -> Tensor:
        """Read an array, table or nested lists; each row has the numbers of one input, in order."""
        if not isinstance(raw, Tensor):  # a tensor's attribute ``values`` is a method
            raw = getattr(raw, "values", raw)
        numbers = as_tensor(raw, self.form)
        if numbers.is_complex() or not numbers.dim():
            raise InputError(f"predict: takes {self.form}; this is a {numbers.dtype}")
        if numbers[0:1].numel() == prod(self.size):  # [n, 64] becomes [n, 1, 8, 8]
            numbers = numbers.reshape(-1, *self.size)
        return check_shape(numbers.to(self.dtype), self.size, self.form)

    def prepare(self, raw: Tensor) -> Tensor:
        """Standardise the raw numbers; return float32 [n, *size]."""
        return ((raw - self._constant(self.mean, raw)) / self._constant(self.std, raw)).float()

    def _constant(self, values: tuple[float, ...], raw: Tensor) -> Tensor:
        """``values`` as a tensor like ``raw``: one value, or one for each number of an input."""
        constant = torch.tensor(values, dtype=raw.dtype, device=raw.device)
        return constant if len(values) == 1 else constant.view(self.size)
