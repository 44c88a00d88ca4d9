"""Declare which kinds of layers a model has, because some engines cannot train all kinds."""

from collections.abc import Iterator, Mapping

from torch import nn
from torch.nn import RNNBase
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd
from torchvision.ops import StochasticDepth

from fedexp.config.compatibility.declaration import Declaration
from fedexp.config.compatibility.traits import (
    BATCH_NORM,
    DROPOUT,
    FIXED_HEAD,
    LEFT_OUT_HEAD,
    RECURRENT,
    STOCHASTIC_DEPTH,
)
from fedexp.core.fixed_weights import fixed_layers


def declared_layers(backbone: nn.Module, parts: Mapping[str, object]) -> Iterator[Declaration]:
    """Yield a declaration for each layer that some engine or part may not support.

    Such layers are BatchNorm without fixed statistics, dropout, stochastic depth, recurrent layers,
    and a head without trained parameters. Layers are named as in the client's model.

    Args:
        backbone: the backbone; it may be on the meta device.
        parts: name of the socket -> part in this socket.
    """
    networks = {name: part for name, part in parts.items() if isinstance(part, nn.Module)}
    fixed = {f"backbone.{name}".rstrip(".") for name in fixed_layers(backbone)}
    for name, layer in nn.ModuleDict({"backbone": backbone, **networks}).named_modules():
        if isinstance(layer, _BatchNorm) and name not in fixed:
            yield Declaration(name, frozenset({BATCH_NORM}))
        if isinstance(layer, _DropoutNd) and layer.p > 0:
            yield Declaration(name, frozenset({DROPOUT}))
        if isinstance(layer, StochasticDepth) and layer.p > 0:
            yield Declaration(name, frozenset({STOCHASTIC_DEPTH}))
        if isinstance(layer, RNNBase):
            yield Declaration(name, frozenset({RECURRENT}))
    head = networks["head"]
    parameters = list(head.parameters())
    if not any(parameter.requires_grad for parameter in parameters):
        untrained = LEFT_OUT_HEAD if parameters else FIXED_HEAD
        yield Declaration(f"head={type(head).__name__.lower()}", frozenset({untrained}))
