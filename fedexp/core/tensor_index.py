"""A module's tensors by name, without walking through its submodules each time."""

from collections.abc import Collection, Iterable, Iterator
from typing import Any

from torch import Tensor, nn

from fedexp.core.messages import Tensors


class TensorIndex:
    """The places of a module's parameters and buffers, found once.

    Tensors may be replaced later, but names may not change. For a small model, ``named_parameters``
    and its like took a tenth of a client's training time.

    Args:
        module: it.
        fixed: names of parameters and buffers that no client changes; ``fixed`` alone gives them.
    """

    def __init__(self, module: nn.Module, fixed: Collection[str] = ()) -> None:
        parameters = [name for name, _ in module.named_parameters()]
        buffers = [name for name, _ in module.named_buffers()]
        self._parameters = _places(module, (name for name in parameters if name not in fixed))
        self._buffers = _places(module, (name for name in buffers if name not in fixed))
        self._weights = _places(module, (n for n in module.state_dict() if n not in fixed))
        self._fixed = _places(module, (name for name in parameters + buffers if name in fixed))

    def parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """As ``named_parameters``, of those that are trained."""
        return ((name, tensors[key]) for name, tensors, key in self._parameters)

    def buffers(self) -> Iterator[tuple[str, Tensor]]:
        """As ``named_buffers``, of those that are not fixed."""
        return ((name, tensors[key]) for name, tensors, key in self._buffers)

    def set_buffer(self, name: str, value: Tensor) -> None:
        """Put ``value`` in the place of the buffer of this name."""
        for each, tensors, key in self._buffers:
            if each == name:
                tensors[key] = value

    def everything(self) -> Iterator[tuple[str, Tensor]]:
        """As ``named_parameters`` and ``named_buffers``, without what is fixed."""
        for places in (self._parameters, self._buffers):
            yield from ((name, tensors[key]) for name, tensors, key in places)

    def fixed(self) -> Iterator[tuple[str, Tensor]]:
        """Parameters and buffers that no client changes."""
        return ((name, tensors[key]) for name, tensors, key in self._fixed)

    def weights(self) -> Tensors:
        """As ``state_dict``, without what is fixed."""
        return {name: tensors[key].detach() for name, tensors, key in self._weights}


def _places(module: nn.Module, names: Iterable[str]) -> list[tuple[str, dict[str, Any], str]]:
    """(name, the submodule's dictionary that has it, its key there) of parameters and buffers."""
    found = []
    for name in names:
        path, _, key = name.rpartition(".")
        submodule = module.get_submodule(path)
        is_parameter = key in submodule._parameters
        found.append((name, submodule._parameters if is_parameter else submodule._buffers, key))
    return found
