"""Copies from the CPU to a GPU that nobody waits for."""

import torch
from torch import Tensor


def to_device(tensor: Tensor, device: torch.device) -> Tensor:
    """``tensor`` on ``device``, as ``tensor.to(device)``.

    From ordinary memory that call waits until the GPU has done all of its work so far. Here the
    copy is from page-locked memory and takes its place among that work.
    """
    if device.type == "cuda" and tensor.device.type == "cpu":
        return tensor.pin_memory().to(device, non_blocking=True)
    return tensor.to(device)
