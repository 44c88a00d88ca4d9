"""Levels: vectors from several depths of a network, in addition to its features z.

A network with levels has the method ``forward_levels``, which returns the levels besides z. (Hooks
could also collect levels, but hooks do not work with ``torch.func.vmap``.)
"""

from typing import Protocol, runtime_checkable

from torch import Tensor, nn

Levels = tuple[Tensor, ...]
"""Levels in order of depth. Each level is a tensor [B, width]; the widths may differ."""


@runtime_checkable
class HasLevels(Protocol):
    """A network or a block of layers that has levels."""

    def forward_levels(self, inputs: Tensor) -> tuple[Tensor, Levels]:
        """Compute the output and the levels; the output is bit-identical to that of ``forward``."""


def level(maps: Tensor) -> Tensor:
    """The mean [B, channels] of feature maps [B, channels, height, width] over height and width."""
    return maps.mean(dim=(2, 3))


class LevelReLU(nn.ReLU):
    """ReLU after a convolution. Its level is its input, averaged over height and width."""

    def forward_levels(self, maps: Tensor) -> tuple[Tensor, Levels]:
        """Compute the ReLU of ``maps``, and a level, their mean over height and width."""
        return self(maps), (level(maps),)


class LevelSequential(nn.Sequential):
    """A Sequential that collects the levels of its modules, in order."""

    def forward_levels(self, inputs: Tensor) -> tuple[Tensor, Levels]:
        """Compute the output of the last module, and the levels of the modules that have levels."""
        output: Tensor = inputs
        levels: Levels = ()
        for module in self:
            if isinstance(module, HasLevels):
                output, module_levels = module.forward_levels(output)
                levels += module_levels
            else:
                output = module(output)
        return output, levels
