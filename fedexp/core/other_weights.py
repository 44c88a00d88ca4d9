"""A method of a module, called with other weights than the module's."""

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor, nn
from torch.func import functional_call


class MethodOf(nn.Module):
    """A module whose forward pass is a method of another module.

    Args:
        module: the module.
        method: its method, or another function of its parameters, its buffers and the arguments.
    """

    def __init__(self, module: nn.Module, method: Callable[..., Any]) -> None:
        super().__init__()
        self.module, self.method = module, method
        self._first_names = first_names(module)

    def forward(self, *arguments: Any) -> Any:
        """Call the method with the module's own weights."""
        return self.method(*arguments)

    def with_weights(self, weights: Mapping[str, Tensor], *arguments: Any) -> Any:
        """Call the method with ``weights`` in place of the module's weights of these names.

        A tensor with several names is replaced under all of them if ``weights`` has the first. The
        module has its own weights again after the call.
        """
        firsts = self._first_names.items()
        named = {f"module.{name}": weights[first] for name, first in firsts if first in weights}
        return functional_call(self, named, arguments, tie_weights=False)


def first_names(module: nn.Module) -> dict[str, str]:
    """Each name of a parameter or buffer -> the first name of this tensor.

    ``functional_call`` would look for tensors with several names in each call, which takes a
    twentieth of a small model's step.
    """
    named = [
        *module.named_parameters(remove_duplicate=False),
        *module.named_buffers(remove_duplicate=False),
    ]
    first: dict[int, str] = {}
    return {name: first.setdefault(id(tensor), name) for name, tensor in named}
