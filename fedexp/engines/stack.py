"""The states of many clients' modules, stacked along a new first dimension."""

from collections.abc import Callable, Mapping, Sequence
from copy import copy
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.func import vmap

from fedexp.core.client import ClientModule
from fedexp.core.other_weights import MethodOf
from fedexp.core.turn import Turn


class Stack:
    """The parameters and buffers of K clients' modules.

    Args:
        module: the resident module, from which rows are saved and into which they are loaded.
        size: K, the number of clients.

    Attributes:
        state: name of a parameter or buffer -> [K, ...]; fixed tensors are left out.
        turns: row -> the turn of the row's client.
    """

    def __init__(self, module: ClientModule, size: int) -> None:
        self.module = module
        linear = {f"{n}.weight" for n, m in module.named_modules() if isinstance(m, nn.Linear)}
        self.state = {
            name: _empty_rows(size, value.detach(), transposed=name in linear)
            for name, value in module.tensor_index.everything()
        }
        self.turns = [cast(Turn, None)] * size  # until ``save_row``

    @torch.no_grad()
    def save_row(self, row: int) -> None:
        """Copy the state of the resident module into this row of the stack."""
        self.turns[row] = self.module.turn
        for name, value in self.module.tensor_index.everything():
            self.state[name][row].copy_(value)

    @torch.no_grad()
    def load_row(self, row: int) -> None:
        """Copy this row of the stack into the resident module."""
        self.module.resume_turn(self.turns[row])
        for name, value in self.module.tensor_index.everything():
            value.copy_(self.state[name][row])

    def sort_rows(self, order: Sequence[int]) -> None:
        """Put the rows into this order; it holds the present row of each new row."""
        if list(order) == list(range(len(self.turns))):
            return
        self.turns = [self.turns[row] for row in order]
        for value in self.state.values():
            value.copy_(value[list(order)])

    def part(self, rows: slice) -> "Stack":
        """A stack of these rows that shares memory with this stack."""
        part = copy(self)
        part.state = {name: value[rows] for name, value in self.state.items()}
        part.turns = self.turns[rows]
        return part


def _empty_rows(size: int, value: Tensor, transposed: bool) -> Tensor:
    """An empty tensor [size, *shape of value]; with ``transposed``, its matrices are column-major.

    This matches the gradients of stacked linear layers, which are column-major.
    """
    if transposed:
        return value.new_empty(size, *value.shape[::-1]).transpose(1, 2)
    return value.new_empty(size, *value.shape)


def dense(value: Tensor, like: Tensor | None = None) -> Tensor:
    """Sort the dimensions of ``value`` by stride, the largest first, to make it contiguous.

    If ``like`` is given, the strides of ``like`` decide the order. The result is a view if
    possible, else a copy.
    """
    return value.permute(memory_order(value if like is None else like)).contiguous()


def memory_order(value: Tensor) -> list[int]:
    """The dimensions of ``value`` sorted by stride, the largest first."""
    return sorted(range(value.dim()), key=value.stride, reverse=True)


class StackedMethod(MethodOf):
    """A method of the module, called for all rows of a stack at once.

    Args:
        module: the resident module.
        method: a pure function of the module's parameters, its buffers and the arguments.
        shared: whether all rows get the same arguments. Otherwise row k gets the k-th entry of
            each argument.
    """

    def __init__(
        self, module: ClientModule, method: Callable[..., Any], shared: bool = False
    ) -> None:
        super().__init__(module, method)
        in_dims = (0, None) if shared else (0, 0)
        self._all_rows = vmap(self._one_row, in_dims, randomness="different")

    def compile_rows(self, mode: str) -> None:
        """Compile ``rows`` with ``torch.compile`` in this mode."""
        self._all_rows = torch.compile(self._all_rows, mode=mode)

    def rows(self, state: Mapping[str, Tensor], *arguments: Any) -> Any:
        """Call the method for each of K rows of ``state`` (name -> [K, ...]); stack the results."""
        return self._all_rows(dict(state), arguments)

    def _one_row(self, state: dict[str, Tensor], arguments: tuple[Tensor, ...]) -> Any:
        return self.with_weights(state, *arguments)
