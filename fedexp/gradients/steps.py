"""Steps that move all parameters of a model along a direction."""

import torch

from fedexp.core.messages import Tensors


def along(parameters: Tensors, direction: Tensors, scale: float = 1.0) -> Tensors:
    """Compute parameters + scale * direction. Parameters without a direction do not change."""
    return {
        name: value + scale * direction[name] if name in direction else value
        for name, value in parameters.items()
    }


def scaled_to(length: float, direction: Tensors) -> Tensors:
    """Scale ``direction`` so that its norm over all parameters is ``length``. Zero stays zero."""
    if not direction:
        return {}
    norm = torch.stack([value.square().sum() for value in direction.values()]).sum().sqrt()
    scale = torch.where(norm > 0, length / norm, 0)
    return {name: scale * value for name, value in direction.items()}
