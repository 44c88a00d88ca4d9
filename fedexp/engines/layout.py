"""Memory layout and compilation: they change the time of a step but not its result."""

import torch
from torch import nn

from fedexp.errors import InputError

_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)


def prefers_channels_last(model: nn.Module, device: torch.device, precision: str) -> bool:
    """Whether a training step is faster with images as [B, H, W, C] in memory.

    Measured on a CPU with torch 2.15: with this layout a step takes 0.6 to 0.95 of the time. The
    exception is the model ``convnet``: it takes 1.2 of the time, because its GroupNorm has one
    channel per group. On a GPU, 16-bit tensor cores are faster with this layout.
    """
    layers = list(model.modules())
    per_channel_norm = any(
        isinstance(layer, nn.GroupNorm) and layer.num_groups == layer.num_channels > 1
        for layer in layers
    )
    return (
        convolves(model)
        and not per_channel_norm
        and (device.type == "cpu" or precision == "bf16-mixed")
    )


def convolves(model: nn.Module) -> bool:
    """Whether the model has convolutions."""
    return any(isinstance(layer, _CONVOLUTIONS) for layer in model.modules())


def gains_from_bf16(model: nn.Module, device: torch.device, precision: str) -> bool:
    """Whether ``engine.precision=bf16-mixed`` would make training on this CPU faster.

    Convolutions took 0.4 to 0.7 of the time on CPUs with instructions for bfloat16, and linear
    layers gained nothing. Versions of PyTorch that do not name the instructions count as without.
    """
    instructions: dict[str, bool] = getattr(torch.cpu, "get_capabilities", dict)()
    has_bf16 = any(instructions.get(name) for name in ("amx_bf16", "avx512_bf16"))
    return has_bf16 and precision == "32-true" and device.type == "cpu" and convolves(model)


def check_compiler(device: torch.device) -> None:
    """Raise InputError if ``torch.compile`` does not work on this machine."""
    try:
        torch.compile(lambda x: x + 1)(torch.zeros(1, device=device))
    except Exception as error:
        reason = str(error).partition("\n")[0]
        raise InputError(f"engine.compile: not on this machine ({reason})") from error
