"""What changes the time of a step but not its result: where tensors lie, and compiled code."""

import torch
from torch import nn

from fedexp.errors import InputError

_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)


def channels_last_pays(model: nn.Module, device: torch.device, precision: str) -> bool:
    """Whether images had better lie as [B, H, W, C] in memory.

    What was measured: on a CPU with torch 2.15 a step takes 0.6 to 0.95 of its time with every
    model here but ``convnet``, whose norm has every channel by itself: that takes 1.2. On a GPU it
    is what tensor cores of 16 bits want.
    """
    layers = list(model.modules())
    convolves = any(isinstance(layer, _CONVOLUTIONS) for layer in layers)
    of_channels = any(
        isinstance(layer, nn.GroupNorm) and layer.num_groups == layer.num_channels > 1
        for layer in layers
    )
    return convolves and not of_channels and (device.type == "cpu" or precision == "bf16-mixed")


def check_compiler(device: torch.device) -> None:
    """Raises InputError where ``torch.compile`` lacks what it needs."""
    try:
        torch.compile(lambda x: x + 1)(torch.zeros(1, device=device))
    except Exception as error:
        reason = str(error).partition("\n")[0]
        raise InputError(f"engine.compile=true: not on this machine ({reason})") from error
