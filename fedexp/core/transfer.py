"""Copies from the CPU to an accelerator without waiting for it."""

import torch
from torch import Tensor


def to_device(tensor: Tensor, device: torch.device) -> Tensor:
    """``tensor.to(device)``, but without waiting for an accelerator.

    A copy from ordinary memory waits until the device has finished its queued work. A copy from
    page-locked memory is queued behind that work.
    """
    if device.type not in ("cpu", "meta") and tensor.device.type == "cpu":
        return tensor.pin_memory().to(device, non_blocking=True)
    return tensor.to(device)
