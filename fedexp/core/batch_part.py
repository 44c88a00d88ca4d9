"""The part of a batch whose gradient a ``LocalGradient`` asks for."""

import torch
from torch import Tensor


def part_of(
    inputs: Tensor, targets: Tensor, real: Tensor | None, part: int, parts: int
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Every ``parts``-th sample of a batch [B], beginning at ``part``: (inputs, targets, real).

    ``Forward`` explains ``real``. If ``part`` is beyond the batch, the result is the first sample.
    """
    if len(targets) <= part:
        part = 0
    rows = slice(part, None, parts)
    if real is None or part == 0:
        return inputs[rows], targets[rows], None if real is None else real[rows]
    # In a stack of clients, a client's part is beyond its batch if its first row is padding.
    inputs, targets, real = (
        torch.cat((torch.where(real[part] > 0, value[part], value[0])[None], value[rows][1:]))
        for value in (inputs, targets, real)
    )
    return inputs, targets, real
