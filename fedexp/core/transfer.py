"""Copies from the CPU to a GPU without waiting for the GPU."""

import torch
from torch import Tensor


def to_device(tensor: Tensor, device: torch.device) -> Tensor:
    """``tensor.to(device)``, but without waiting for a GPU.

    A copy from ordinary memory waits until the GPU has finished its queued work. A copy from
    page-locked memory is queued behind that work.
    """
    if device.type == "cuda" and tensor.device.type == "cpu":
        return tensor.pin_memory().to(device, non_blocking=True)
    return tensor.to(device)
