"""Levels: one vector of each of several depths of a network, beside its features z.

A network with levels has the method ``forward_levels``. Levels are outputs and not caught by hooks,
so that ``torch.func.vmap`` can stack networks.
"""

from typing import Protocol, runtime_checkable

from torch import Tensor, nn

Levels = tuple[Tensor, ...]
"""From the input to the output, each [B, width]; the widths may differ."""


@runtime_checkable
class HasLevels(Protocol):
    """A network, or a part of one, with levels."""

    def forward_levels(self, inputs: Tensor) -> tuple[Tensor, Levels]:
        """The output, to the bit that of ``forward``, and the levels on the way to it."""


def level(maps: Tensor) -> Tensor:
    """The spatial mean [B, channels] of feature maps [B, channels, height, width]."""
    return maps.mean(dim=(2, 3))


class LevelReLU(nn.ReLU):
    """ReLU after a convolution; the level is the spatial mean of its input."""

    def forward_levels(self, maps: Tensor) -> tuple[Tensor, Levels]:
        """The rectified maps, and one level."""
        return self(maps), (level(maps),)


class LevelSequential(nn.Sequential):
    """A Sequential; its levels are those of its modules in order."""

    def forward_levels(self, inputs: Tensor) -> tuple[Tensor, Levels]:
        """The output of the last module, and the levels of all that have any."""
        output: Tensor = inputs
        levels: Levels = ()
        for module in self:
            if isinstance(module, HasLevels):
                output, found = module.forward_levels(output)
                levels += found
            else:
                output = module(output)
        return output, levels
