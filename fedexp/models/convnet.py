"""The ConvNet of dataset distillation, with which FedPTR learns its synthetic images."""

from pydantic import PositiveInt
from torch import nn

from fedexp.config.compatibility.unread import declares_unread
from fedexp.models.layers import Projection, flat_width, image_channels, project
from fedexp.models.levels import LevelReLU, LevelSequential


@declares_unread({"projection": {"feature_dim": (None,)}})
def convnet(
    input_shape: tuple[int, ...],
    width: PositiveInt,
    depth: PositiveInt,
    feature_dim: PositiveInt | None,
    projection: Projection,
) -> nn.Module:
    """Build the ConvNet of MTT, a method of dataset distillation (Cazenavette et al., CVPR 2022).

    Each block has a 3x3 convolution, a normalisation, a ReLU and a 2x2 average pool. The output of
    the last block is flattened. The normalisation is instance normalisation: a GroupNorm with one
    group per channel. With one input channel the first convolution pads by 3 instead of 1, so that
    28x28 becomes 32x32. The levels (``fedexp.models.levels``) come from the feature maps before
    each block's ReLU.

    Args:
        input_shape: [channels, height, width].
        width: channels of every block.
        depth: number of blocks. Each block halves height and width.
        feature_dim: width of a projection after the network; None means no projection. Without it,
            32x32 colour images and 28x28 grey images have 2048 features at width 128 and depth 3.
        projection: layers of the projection, see ``project``.
    """
    channels = image_channels(input_shape)
    first = _block(channels, width, padding=3 if channels == 1 else 1)
    others = (_block(width, width, padding=1) for _ in range(depth - 1))
    blocks = LevelSequential(first, *others, nn.Flatten())
    return project(blocks, flat_width(blocks, input_shape), feature_dim, projection)


def _block(before: int, width: int, padding: int) -> LevelSequential:
    return LevelSequential(
        nn.Conv2d(before, width, 3, padding=padding),
        nn.GroupNorm(width, width),
        LevelReLU(),
        nn.AvgPool2d(2),
    )
