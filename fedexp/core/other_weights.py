"""A method of a module, called with other weights than the module's."""

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from torch import Tensor, nn
from torch.func import functional_call

_T = TypeVar("_T")


def call_with(
    module: nn.Module, weights: Mapping[str, Tensor], method: Callable[..., _T], *arguments: Any
) -> _T:
    """Call a method of ``module`` with ``weights`` in place of its weights of these names.

    The module has its own weights again after the call.
    """
    if not weights:
        return method(*arguments)
    named = {f"module.{name}": value for name, value in weights.items()}
    # Tied weights would be looked for by a walk through all modules, in each step.
    found: _T = functional_call(_Method(module, method), named, arguments, tie_weights=False)
    return found


class _Method(nn.Module):
    """A module whose forward pass is a method of another module."""

    def __init__(self, module: nn.Module, method: Callable[..., Any]) -> None:
        super().__init__()
        self.module, self.method = module, method

    def forward(self, *arguments: Any) -> Any:
        return self.method(*arguments)
