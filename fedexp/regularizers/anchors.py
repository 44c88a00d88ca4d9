"""Tools that several regularizers share: anchors, and arithmetic on named tensors."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Literal

import torch
from torch import Tensor, nn

from fedexp.core.messages import Tensors

Scaling = Literal["none", "samples"]
"""Whether to divide a quantity by client k's relative size n_k / mean(n): ``samples`` divides.

n_k is the client's number of training samples, and the mean is over the clients that have data.
"""


class Anchors(nn.Module):
    """Values that parameters are compared with: one non-persistent buffer for each parameter.

    The values may differ between clients. They are buffers so that ``torch.func`` can stack the
    values of several clients.
    """

    def __init__(self, shapes: Mapping[str, torch.Size]) -> None:
        super().__init__()
        self._buffer_of = {name: name.replace(".", "/") for name in shapes}
        for name, shape in shapes.items():
            self.register_buffer(self._buffer_of[name], torch.zeros(shape), persistent=False)

    def __getitem__(self, name: str) -> Tensor:
        return self.get_buffer(self._buffer_of[name])

    def __iter__(self) -> Iterator[str]:
        return iter(self._buffer_of)

    def __contains__(self, name: str) -> bool:
        return name in self._buffer_of

    @torch.no_grad()
    def set(self, tensors: Tensors) -> None:
        """Set each anchor to the tensor of the same name. Ignore tensors without an anchor."""
        for name in self:
            self[name].copy_(tensors[name])

    @torch.no_grad()
    def fill(self, tensors: Tensors) -> None:
        """Set each anchor to the tensor of the same name, or to zero if there is no such tensor."""
        for name in self:
            if name in tensors:
                self[name].copy_(tensors[name])
            else:
                self[name].zero_()


def total(terms: Sequence[Tensor]) -> Tensor | float:
    """Sum scalar terms. The sum of no terms is 0, for example if only private parameters train."""
    return torch.stack(list(terms)).sum() if terms else 0.0


def combine(left: Tensors, right: Tensors, scale: float = 1.0) -> Tensors:
    """Compute left + scale * right for each name. A tensor missing on one side counts as zero."""
    result = dict(left)
    for name, value in right.items():
        scaled = scale * value
        result[name] = result[name] + scaled if name in result else scaled
    return result
