"""Many copies of one module's state, stacked along a new first dimension."""

from collections.abc import Callable, Mapping
from copy import copy
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from fedexp.core.client import ClientModule


class Stack:
    """The parameters and buffers of K clients' modules.

    Args:
        module: the resident module, which rows are copied from and into.
        size: K.

    Attributes:
        state: name -> [K, ...], of every parameter and buffer.
        turns: each row's ``ClientModule.turn_state``.
    """

    def __init__(self, module: ClientModule, size: int) -> None:
        self.module = module
        linear = {f"{n}.weight" for n, m in module.named_modules() if isinstance(m, nn.Linear)}
        self.state = {
            name: _empty_rows(size, value.detach(), transposed=name in linear)
            for name, value in module.tensor_index.everything()
        }
        self.turns: list[dict[str, Any]] = [{} for _ in range(size)]

    @torch.no_grad()
    def save_row(self, row: int) -> None:
        """Copy the module's state into this row."""
        self.turns[row] = self.module.turn_state()
        for name, value in self.module.tensor_index.everything():
            self.state[name][row].copy_(value)

    @torch.no_grad()
    def load_row(self, row: int) -> None:
        """Copy this row into the module."""
        self.module.restore_turn(self.turns[row])
        for name, value in self.module.tensor_index.everything():
            value.copy_(self.state[name][row])

    def part(self, rows: slice) -> "Stack":
        """These rows as a stack that shares memory with this one."""
        part = copy(self)
        part.state = {name: value[rows] for name, value in self.state.items()}
        part.turns = self.turns[rows]
        return part


def _empty_rows(size: int, value: Tensor, transposed: bool) -> Tensor:
    """[size, *shape of value]; if ``transposed``, its matrices are column-major in memory.

    The gradients of stacked linear layers are column-major, too.
    """
    if transposed:
        return value.new_empty(size, *value.shape[::-1]).transpose(1, 2)
    return value.new_empty(size, *value.shape)


def dense(value: Tensor, like: Tensor | None = None) -> Tensor:
    """``value`` as a contiguous tensor, its dimensions in the memory order of ``like``.

    Without ``like``, in its own memory order. A view if ``value`` is laid out like that, else a
    copy.
    """
    return value.permute(memory_order(value if like is None else like)).contiguous()


def memory_order(value: Tensor) -> list[int]:
    """The dimensions from the one with the largest stride to the one with the smallest."""
    return sorted(range(value.dim()), key=value.stride, reverse=True)


class StackedMethod(nn.Module):
    """A method of the module, called for all rows of a stack at once.

    Args:
        module: the resident module.
        method: a pure function of the module's parameters, its buffers and the arguments.
        shared: whether all rows get the same arguments, rather than row k the k-th of each.
    """

    def __init__(
        self, module: ClientModule, method: Callable[..., Any], shared: bool = False
    ) -> None:
        super().__init__()
        self.module, self.method = module, method
        in_dims = (0, None) if shared else (0, 0)
        self._all_rows = vmap(self._one_row, in_dims, randomness="different")

    def forward(self, *arguments: Tensor) -> Any:
        """The method on the module itself."""
        return self.method(*arguments)

    def compile_rows(self) -> None:
        """Compile the call with ``torch.compile``."""
        self._all_rows = torch.compile(self._all_rows)

    def rows(self, state: Mapping[str, Tensor], *arguments: Tensor) -> Any:
        """The method for each row of ``state`` (name -> [K, ...]); results are stacked, too."""
        return self._all_rows(dict(state), arguments)

    def _one_row(self, state: dict[str, Tensor], arguments: tuple[Tensor, ...]) -> Any:
        named = {f"module.{name}": value for name, value in state.items()}
        return functional_call(self, named, arguments)
