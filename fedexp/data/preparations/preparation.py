"""The interface of a preparation, a rule that turns raw inputs into a model's inputs.

A reader makes a preparation together with its dataset. Each run stores its preparation, so that the
trained model can be used without the training data.
"""

from abc import abstractmethod
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from fedexp.config.build import Node, build
from fedexp.errors import InputError


@dataclass(frozen=True)
class Preparation:
    """Turns raw inputs into a model's inputs, in two steps.

    ``read`` takes a user's data, such as a table or image files, and returns a tensor of raw
    numbers. ``prepare`` computes the model's inputs from this raw tensor. An exported model
    contains ``prepare``; its input is the raw tensor.

    A subclass is a frozen dataclass; JSON can store the values of its fields.

    Attributes:
        dtype: type of the raw tensor.
    """

    dtype: ClassVar[torch.dtype]

    @property
    @abstractmethod
    def shape(self) -> tuple[int, ...]:
        """Shape of one raw input in the raw tensor."""

    @property
    @abstractmethod
    def form(self) -> str:
        """The raw inputs in words, such as "uint8 images [n, 3, 32, 32]"."""

    @abstractmethod
    def read(self, raw: Any) -> Tensor:
        """Read a user's data as a raw tensor [n, *shape]. Raises InputError if they do not fit."""

    @abstractmethod
    def prepare(self, raw: Tensor) -> Tensor:
        """Compute the model's inputs from the raw tensor [n, *shape]; a pure function."""

    def examples(self, count: int) -> Tensor:
        """``count`` valid raw inputs [count, *shape], which consist of ones."""
        return torch.ones(count, *self.shape, dtype=self.dtype)

    @property
    def node(self) -> Node:
        """The preparation as JSON values, which ``from_node`` reads."""
        kind = type(self)
        return {"_target_": f"{kind.__module__}.{kind.__qualname__}", **asdict(self)}


def from_node(node: Node) -> Preparation:
    """Make the preparation that ``node`` describes. Raises InputError if that is impossible."""
    made: Preparation = build("preparation", node, Preparation)
    return made


def as_tensor(raw: Any, form: str) -> Tensor:
    """Make a tensor of an array, a tensor or nested lists; errors name the expected ``form``."""
    try:
        return torch.as_tensor(raw)
    except (TypeError, ValueError, RuntimeError) as error:
        reason = str(error).partition("\n")[0]
        raise InputError(f"predict: takes {form}; this cannot be one ({reason})") from error


def check_shape(raw: Tensor, shape: tuple[int, ...], form: str) -> Tensor:
    """Return ``raw`` if it is [n, *shape] with n > 0; else raise InputError with the ``form``."""
    if raw.shape[1:] != shape or not len(raw):
        raise InputError(f"predict: takes {form}; these are {list(raw.shape)}")
    return raw
