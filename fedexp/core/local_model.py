"""The model of a client: a backbone and a head whose weights have names."""

from collections.abc import Iterator, Mapping
from itertools import chain
from typing import Self

import torch
from lightning import LightningModule
from torch import Tensor, nn

from fedexp.core.fixed_weights import fixed_buffers, fixed_layers, fixed_parameters
from fedexp.core.messages import Tensors
from fedexp.core.sockets import Head, Phase
from fedexp.core.tensor_index import TensorIndex


class LocalModel(LightningModule):
    """A backbone and a head; their weights are read, replaced and frozen by name.

    A subclass adds its modules and then calls ``index_weights``.

    A parameter without ``requires_grad`` at construction is fixed: ``weights`` leaves it out. See
    ``core.fixed_weights``.
    """

    tensor_index: TensorIndex

    def __init__(self, backbone: nn.Module, head: Head) -> None:
        super().__init__()
        self.backbone, self.head = backbone, head
        self._trainable: tuple[str, ...] = ("",)
        self._plain_sgd = False
        self._derived = {f"head.{name}" for name in head.derived}
        self._fixed_layers = tuple(fixed_layers(backbone).values())

    def index_weights(self) -> None:
        """Make the index of the weights; call it again after modules are added or replaced."""
        if not hasattr(self, "_fixed"):  # parameters that a phase freezes later are not fixed
            of_backbone = {f"backbone.{n}" for n in fixed_buffers(self.backbone)}
            self._fixed = fixed_parameters(self) | of_backbone
        self.tensor_index = TensorIndex(self, self._fixed)

    def trained_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """(name, parameter) pairs that the current phase trains."""
        # Selected by name: under ``torch.func`` parameters do not keep their ``requires_grad``.
        return ((n, p) for n, p in self.tensor_index.parameters() if n.startswith(self._trainable))

    @property
    def weights(self) -> Tensors:
        """Name -> parameter or persistent buffer, without fixed weights.

        The tensors share the module's memory.
        """
        return self.tensor_index.weights()

    @property
    def stored_parameters(self) -> int:
        """The number of elements in all parameters and buffers: model, parts and frozen copies."""
        held = chain(self.tensor_index.everything(), self.tensor_index.fixed())
        return sum(value.numel() for _, value in held)

    def is_sent(self, name: str) -> bool:
        """Whether this weight may be sent: every weight except the head's derived buffers."""
        return name not in self._derived

    @torch.no_grad()
    def load(self, weights: Mapping[str, Tensor]) -> None:
        """Copy ``weights`` into the module in place; weights of other names do not change."""
        if not weights:
            return
        current = self.weights
        for name, value in weights.items():
            current[name].copy_(value)

    def train(self, mode: bool = True) -> Self:
        """Set train mode, except for layers with fixed buffers: these stay in eval mode."""
        super().train(mode)
        for layer in self._fixed_layers:
            layer.training = False
        return self

    def begin_phase(self, phase: Phase) -> None:
        """Set train or eval mode and select the trained parameters, for a phase of training."""
        self.train()
        if phase.eval_mode:
            for name, module in self.named_modules():
                if f"{name}.".startswith(phase.eval_mode):
                    module.eval()
        self._plain_sgd = phase.plain_sgd
        self.train_only(phase.trainable)

    def train_only(self, prefixes: tuple[str, ...]) -> None:
        """Train only the parameters whose name starts with one of ``prefixes``."""
        self._trainable = prefixes
        for name, value in self.tensor_index.parameters():
            value.requires_grad_(name.startswith(prefixes))
