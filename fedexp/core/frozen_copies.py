"""Frozen copies of the model, for losses that compare the trained model with another one."""

from collections.abc import Iterable
from copy import deepcopy
from typing import Self, cast

import torch
from torch import Tensor, nn

from fedexp.core.forward import Outputs, outputs
from fedexp.core.messages import Tensors
from fedexp.core.other_weights import first_names


class Reference(Outputs):
    """The outputs of a frozen copy on one batch.

    Attributes:
        head: the frozen head, for a loss that needs more than its logits.
    """

    head: nn.Module


class FrozenCopy(nn.Module):
    """A copy of backbone and head, always in eval mode; its outputs have no gradient.

    All its tensors are non-persistent buffers: they are not trained, sent or saved, and
    ``torch.func`` can stack the copies of several clients.
    """

    def __init__(self, backbone: nn.Module, head: nn.Module) -> None:
        super().__init__()
        self.backbone, self.head = deepcopy(backbone), deepcopy(head)
        # As buffers, tied parameters are several tensors.
        self._first_names = first_names(self)
        for module in self.modules():
            _freeze(module)
        self.train()

    @torch.no_grad()
    def forward(self, inputs: Tensor) -> Reference:
        """The frozen model's features and logits of a batch ``inputs`` [B, ...]."""
        reference = Reference(*outputs(self.backbone, self.head, inputs))
        reference.head = self.head
        return reference

    def train(self, mode: bool = True) -> Self:
        """Stay in eval mode, whatever ``mode`` is."""
        return super().train(False)

    @torch.no_grad()
    def set(self, weights: Tensors) -> None:
        """Copy ``weights`` into this model; names that only one of the two has are ignored.

        The names are the names of ``ClientModule.weights``.
        """
        for name, first in self._first_names.items():
            if first in weights:
                self.get_buffer(name).copy_(weights[first])


class FrozenCopies(nn.ModuleDict):
    """Frozen copies of the model: a dictionary with one copy for each of ``names``."""

    def __init__(self, names: Iterable[str], backbone: nn.Module, head: nn.Module) -> None:
        super().__init__({name: FrozenCopy(backbone, head) for name in names})

    def __getitem__(self, name: str) -> FrozenCopy:
        return cast(FrozenCopy, super().__getitem__(name))

    def forward(self, inputs: Tensor) -> dict[str, Reference]:
        """Name of a frozen copy -> its features and logits of a batch ``inputs`` [B, ...]."""
        return {name: self[name](inputs) for name in self}

    def set(self, weights: Tensors) -> None:
        """Load the same weights into every frozen model; see ``FrozenCopy.set``."""
        for name in self:
            self[name].set(weights)


def _freeze(module: nn.Module) -> None:
    """Turn the tensors of ``module``, without submodules, into non-persistent buffers."""
    for name, parameter in list(module.named_parameters(recurse=False, remove_duplicate=False)):
        delattr(module, name)
        module.register_buffer(name, parameter.detach(), persistent=False)
    for name, buffer in list(module.named_buffers(recurse=False, remove_duplicate=False)):
        module.register_buffer(name, buffer, persistent=False)
