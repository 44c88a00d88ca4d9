"""Steps in the space of named parameters, for gradients at other weights than the current ones."""

from types import MappingProxyType

import torch

from fedexp.compatibility.traits import RUNNING_STATISTICS
from fedexp.core.messages import Tensors

NO_RUNNING_STATISTICS = MappingProxyType(
    {
        RUNNING_STATISTICS: "{other}: its running statistics would follow both gradients of a "
        "step; with gradient=sam or lesam use another head or feature norm"
    }
)
"""What a rule forbids that takes a second gradient on the same samples."""


def along(parameters: Tensors, direction: Tensors, scale: float = 1.0) -> Tensors:
    """parameters + scale * direction; a parameter without a direction stays as it is."""
    return {
        name: value + scale * direction[name] if name in direction else value
        for name, value in parameters.items()
    }


def scaled_to(length: float, direction: Tensors) -> Tensors:
    """``direction`` scaled so that its norm over all names is ``length``; zero stays zero."""
    norm = torch.stack([value.square().sum() for value in direction.values()]).sum().sqrt()
    scale = torch.where(norm > 0, length / norm, 0)
    return {name: scale * value for name, value in direction.items()}
