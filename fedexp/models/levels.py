"""Levels: vectors from several depths of a network, in addition to its features z.

A network with levels has the method ``forward_levels``. It returns levels as outputs, because hooks
do not work with ``torch.func.vmap``.
"""

from typing import Protocol, runtime_checkable

from torch import Tensor, nn

Levels = tuple[Tensor, ...]
"""Levels in order of depth, each [B, width]; the widths may differ."""


@runtime_checkable
class HasLevels(Protocol):
    """A network, or a part of one, with levels."""

    def forward_levels(self, inputs: Tensor) -> tuple[Tensor, Levels]:
        """The output, bit-identical to the output of ``forward``, and the levels."""


def level(maps: Tensor) -> Tensor:
    """The spatial mean [B, channels] of feature maps [B, channels, height, width]."""
    return maps.mean(dim=(2, 3))


class LevelReLU(nn.ReLU):
    """ReLU after a convolution; its level is the spatial mean of its input."""

    def forward_levels(self, maps: Tensor) -> tuple[Tensor, Levels]:
        """The rectified maps and one level."""
        return self(maps), (level(maps),)


class LevelSequential(nn.Sequential):
    """A Sequential with the levels of its modules in order."""

    def forward_levels(self, inputs: Tensor) -> tuple[Tensor, Levels]:
        """The output of the last module and the levels of all modules."""
        output: Tensor = inputs
        levels: Levels = ()
        for module in self:
            if isinstance(module, HasLevels):
                output, module_levels = module.forward_levels(output)
                levels += module_levels
            else:
                output = module(output)
        return output, levels
