"""A module's tensors by name, without walking through its submodules each time."""

from collections.abc import Collection, Iterable, Iterator
from typing import Any

from torch import Tensor, nn

from fedexp.core.messages import Tensors


class TensorIndex:
    """The places of a module's parameters and buffers, looked up once.

    Tensors may be replaced later, but names may not change. A tensor with several names (tied
    weights) has only its first name here. For a small model, ``named_parameters`` and similar calls
    took a tenth of a client's training time.

    Args:
        module: the module that has the tensors.
        fixed: names of the fixed parameters and buffers; only the method ``fixed`` lists them.
    """

    def __init__(self, module: nn.Module, fixed: Collection[str] = ()) -> None:
        parameters = [name for name, _ in module.named_parameters()]
        buffers = [name for name, _ in module.named_buffers()]
        self._parameters = _places(module, (name for name in parameters if name not in fixed))
        self._buffers = _places(module, (name for name in buffers if name not in fixed))
        unfixed = {name for name in parameters + buffers if name not in fixed}
        self._weights = _places(module, (name for name in module.state_dict() if name in unfixed))
        self._fixed = _places(module, (name for name in parameters + buffers if name in fixed))

    def parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """Like ``named_parameters``, without fixed parameters."""
        return ((name, tensors[key]) for name, tensors, key in self._parameters)

    def everything(self) -> Iterator[tuple[str, Tensor]]:
        """Like ``named_parameters`` and ``named_buffers``, without fixed tensors."""
        for places in (self._parameters, self._buffers):
            yield from ((name, tensors[key]) for name, tensors, key in places)

    def fixed(self) -> Iterator[tuple[str, Tensor]]:
        """The fixed parameters and buffers."""
        return ((name, tensors[key]) for name, tensors, key in self._fixed)

    def weights(self) -> Tensors:
        """Like ``state_dict``, without fixed weights and further names of tied ones."""
        return {name: tensors[key].detach() for name, tensors, key in self._weights}


def _places(module: nn.Module, names: Iterable[str]) -> list[tuple[str, dict[str, Any], str]]:
    """For each name: (name, dictionary of the submodule with the tensor, key in the dictionary)."""
    places = []
    for name in names:
        path, _, key = name.rpartition(".")
        submodule = module.get_submodule(path)
        is_parameter = key in submodule._parameters
        places.append((name, submodule._parameters if is_parameter else submodule._buffers, key))
    return places
