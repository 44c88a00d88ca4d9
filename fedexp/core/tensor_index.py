"""A module's tensors by name, without PyTorch's walk through the tree of modules each time."""

from collections.abc import Iterable, Iterator
from typing import Any

from torch import Tensor, nn

from fedexp.core.messages import Tensors


class TensorIndex:
    """Where the parameters and buffers of a module are, found once.

    The tensors may be replaced later, the names may not change. For a small model the walks would
    be a tenth of a client's turn.
    """

    def __init__(self, module: nn.Module) -> None:
        self._parameters = _places(module, (name for name, _ in module.named_parameters()))
        self._buffers = _places(module, (name for name, _ in module.named_buffers()))
        self._weights = _places(module, module.state_dict())

    def parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """As ``named_parameters``."""
        return ((name, holder[key]) for name, holder, key in self._parameters)

    def everything(self) -> Iterator[tuple[str, Tensor]]:
        """As ``named_parameters`` and ``named_buffers``."""
        for places in (self._parameters, self._buffers):
            yield from ((name, holder[key]) for name, holder, key in places)

    def weights(self) -> Tensors:
        """As ``state_dict``."""
        return {name: holder[key].detach() for name, holder, key in self._weights}


def _places(module: nn.Module, names: Iterable[str]) -> list[tuple[str, dict[str, Any], str]]:
    """(name, what holds it, under which key) of parameters and buffers."""
    found = []
    for name in names:
        path, _, key = name.rpartition(".")
        owner = module.get_submodule(path)
        holder = owner._parameters if key in owner._parameters else owner._buffers
        found.append((name, holder, key))
    return found
