"""Residual networks of basic blocks, for small images or large ones."""

from typing import Annotated

from pydantic import Field, PositiveInt
from torch import nn
from torchvision.models.resnet import BasicBlock, ResNet

from fedexp.models.layers import (
    Norm,
    Projection,
    Stem,
    image_channels,
    norm_layer,
    project,
    without_inplace,
)


def resnet(
    input_shape: tuple[int, ...],
    layers: Annotated[list[PositiveInt], Field(min_length=4, max_length=4)],
    norm: Norm,
    groups: PositiveInt,
    norm_in_blocks: bool,
    stem: Stem,
    feature_dim: PositiveInt | None,
    projection: Projection,
) -> nn.Module:
    """torchvision's ResNet (He et al., CVPR 2016) as a backbone with z [B, 512].

    Args:
        input_shape: [channels, height, width].
        layers: basic blocks in each of the four stages; [2, 2, 2, 2] is ResNet18.
        norm: group or batch normalisation.
        groups: groups of a group normalisation; must divide 64.
        norm_in_blocks: whether the two convolutions of a block are normalised. Without, only the
            stem and the shortcuts are, as in FedNH's released ResNet18 (Dai et al., AAAI 2023).
        stem: "cifar" keeps the resolution (3x3, stride 1, no pool), "imagenet" quarters it.
        feature_dim: None for 512, or the width of a projection after it.
        projection: its layers, see ``project``.

    Raises:
        InputError: ``groups`` does not divide 64.
    """
    network = ResNet(BasicBlock, layers, norm_layer=norm_layer(norm, groups, channels=64))
    width = network.fc.in_features
    network.fc = nn.Identity()
    channels = image_channels(input_shape)
    if stem == "cifar":
        network.conv1 = nn.Conv2d(channels, 64, 3, padding=1, bias=False)
        network.maxpool = nn.Identity()
    else:
        network.conv1 = nn.Conv2d(channels, 64, 7, stride=2, padding=3, bias=False)
    if not norm_in_blocks:
        for block in network.modules():
            if isinstance(block, BasicBlock):
                block.bn1 = block.bn2 = nn.Identity()
    return project(without_inplace(network), width, feature_dim, projection)
