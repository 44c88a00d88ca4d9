"""Small convolutional networks: convolutions and pools, often followed by Linear-ReLU layers.

Each function builds a network for images of the shape [channels, height, width]. The network
computes features z [B, d]. If it has levels (``fedexp.models.levels``), they come from the feature
maps before each convolution's ReLU.
"""

from typing import Annotated, Literal

from pydantic import Field, PositiveInt
from torch import nn

from fedexp.models.layers import dense, flat_width, image_channels, project
from fedexp.models.levels import LevelReLU, LevelSequential

Dropout = Annotated[float, Field(ge=0, lt=1)]
HicsBlocks = Literal["relu", "prelu_batchnorm"]


def conv2cifar(input_shape: tuple[int, ...], feature_dim: PositiveInt) -> LevelSequential:
    """FedNH's network for CIFAR (Dai et al., AAAI 2023): two convolutions and two linear layers.

    For images of 32x32 pixels the first linear layer has 1600 inputs and 384 outputs. The second
    has ``feature_dim`` outputs.
    """
    trunk = LevelSequential(
        *_conv(image_channels(input_shape), 64, kernel=5),
        nn.MaxPool2d(2),
        *_conv(64, 64, kernel=5),
        nn.MaxPool2d(2),
    )
    return _with_dense(trunk, input_shape, [384, feature_dim])


def simple_cnn(
    input_shape: tuple[int, ...], feature_dim: PositiveInt, projection_dim: PositiveInt | None
) -> nn.Module:
    """LeNet-5 (LeCun et al., 1998) with ReLU and max pooling.

    For images of 32x32 pixels the first linear layer has 400 inputs and 120 outputs.

    Args:
        input_shape: [channels, height, width].
        feature_dim: width of the second linear layer, and of z without a projection.
        projection_dim: width of an "mlp" projection after the network, see ``project``; or None.
    """
    trunk = LevelSequential(
        *_conv(image_channels(input_shape), 6, kernel=5),
        nn.MaxPool2d(2),
        *_conv(6, 16, kernel=5),
        nn.MaxPool2d(2),
    )
    network = _with_dense(trunk, input_shape, [120, feature_dim])
    if projection_dim is None:
        return network
    return project(network, feature_dim, projection_dim, "mlp")


def hics_fmnist(
    input_shape: tuple[int, ...], blocks: HicsBlocks, dropout: Dropout
) -> nn.Sequential:
    """HiCS-FL's network for Fashion-MNIST; z is the flattened feature map, with d = 512 at 28x28.

    The network has two unpadded 5x5 convolutions of 32 filters, each with a 2x2 max pool, and no
    hidden linear layer.

    Args:
        input_shape: [channels, height, width].
        blocks: layers between convolution and pool. ``relu`` has no normalisation, because the
            paper mentions none. ``prelu_batchnorm`` is the choice of the released code.
        dropout: probability that an element after the second pool is set to zero.
    """
    trunk = [
        layer
        for channels in (image_channels(input_shape), 32)
        for layer in (nn.Conv2d(channels, 32, 5), *_activation(blocks), nn.MaxPool2d(2))
    ]
    sequence = LevelSequential if blocks == "relu" else nn.Sequential
    return sequence(*trunk, nn.Dropout(dropout), nn.Flatten())


def hics_cifar(
    input_shape: tuple[int, ...], feature_dim: PositiveInt, dropout: Dropout
) -> LevelSequential:
    """HiCS-FL's network for CIFAR: three unpadded 3x3 convolutions and a linear layer.

    The third convolution has no ReLU. The flattened map has 1024 elements for 32x32 images.

    Args:
        input_shape: [channels, height, width].
        feature_dim: width of the linear layer, which follows the flattened map and has a ReLU.
        dropout: probability that an element after each pool and after the third convolution is set
            to zero.
    """
    trunk = LevelSequential(
        *_conv(image_channels(input_shape), 32, kernel=3),
        nn.MaxPool2d(2),
        nn.Dropout(dropout),
        *_conv(32, 64, kernel=3),
        nn.MaxPool2d(2),
        nn.Dropout(dropout),
        nn.Conv2d(64, 64, 3),
        nn.Dropout(dropout),
    )
    return _with_dense(trunk, input_shape, [feature_dim])


def _activation(blocks: HicsBlocks) -> tuple[nn.Module, ...]:
    return (LevelReLU(),) if blocks == "relu" else (nn.PReLU(), nn.BatchNorm2d(32))


def _conv(before: int, after: int, kernel: int) -> tuple[nn.Conv2d, LevelReLU]:
    return nn.Conv2d(before, after, kernel), LevelReLU()


def _with_dense(
    trunk: LevelSequential, input_shape: tuple[int, ...], widths: list[int]
) -> LevelSequential:
    width = flat_width(trunk, input_shape)
    return LevelSequential(trunk, nn.Flatten(), dense([width, *widths]))
