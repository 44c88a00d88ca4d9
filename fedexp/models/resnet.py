"""Residual networks, for small or large images."""

from typing import Annotated, Literal

from pydantic import Field, PositiveInt
from torch import Tensor, nn
from torchvision.models.resnet import BasicBlock, Bottleneck, ResNet

from fedexp.config.compatibility.unread import declares_unread
from fedexp.models.layers import (
    Norm,
    Projection,
    Stem,
    image_channels,
    norm_layer,
    project,
    without_inplace,
)
from fedexp.models.levels import Levels, level


def _residual_sum(block: BasicBlock | Bottleneck, x: Tensor) -> Tensor:
    """The output of ``block`` before its last ReLU: the convolutions' output plus the shortcut."""
    out: Tensor = block.bn2(block.conv2(block.relu(block.bn1(block.conv1(x)))))
    if isinstance(block, Bottleneck):
        out = block.bn3(block.conv3(block.relu(out)))
    shortcut: Tensor = x if block.downsample is None else block.downsample(x)
    return shortcut + out


class LevelResNet(ResNet):  # type: ignore[misc]
    """torchvision's ResNet with five levels, from the stem and the four stages."""

    def forward_levels(self, images: Tensor) -> tuple[Tensor, Levels]:
        """Compute z and five levels: means before the last ReLU of the stem and of each stage."""
        maps = self.bn1(self.conv1(images))
        levels = [level(maps)]
        maps = self.maxpool(self.relu(maps))
        for stage in (self.layer1, self.layer2, self.layer3, self.layer4):
            *before, last = stage
            for block in before:
                maps = block(maps)
            maps = _residual_sum(last, maps)
            levels.append(level(maps))
            maps = self.relu(maps)
        return self.fc(self.avgpool(maps).flatten(1)), tuple(levels)


_BLOCKS = {"basic": BasicBlock, "bottleneck": Bottleneck}


@declares_unread({"projection": {"feature_dim": (None,)}, "groups": {"norm": ("batch",)}})
def resnet(
    input_shape: tuple[int, ...],
    block: Literal["basic", "bottleneck"],
    layers: Annotated[list[PositiveInt], Field(min_length=4, max_length=4)],
    norm: Norm,
    groups: PositiveInt,
    norm_in_blocks: bool,
    stem: Stem,
    feature_dim: PositiveInt | None,
    projection: Projection,
) -> nn.Module:
    """Build torchvision's ResNet (He et al., CVPR 2016), with z [B, 512] or [B, 2048].

    Initial weights are torchvision's (Kaiming normal, fan_out), but those of the first convolution,
    which is made anew, are by PyTorch's rule for a layer.

    The levels (``fedexp.models.levels``) come from the feature maps before the ReLU of the stem and
    before the last ReLU of each of the four stages.

    Args:
        input_shape: [channels, height, width].
        block: "basic" has two 3x3 convolutions. "bottleneck" has three: 1x1, 3x3 and 1x1.
        layers: number of blocks in each of the four stages. ResNet18 has [2, 2, 2, 2] basic blocks,
            ResNet50 has [3, 4, 6, 3] bottlenecks.
        norm: "group" or "batch" normalisation.
        groups: number of groups in group normalisation; must divide 64.
        norm_in_blocks: whether to normalise all convolutions. If false, only the shortcuts'
            convolutions are normalised, as in FedNH's released ResNet18 (Dai et al., AAAI 2023).
        stem: the first layers. "cifar" keeps height and width (3x3 convolution, stride 1, no pool).
            "imagenet" divides height and width by 4 (7x7 convolution, stride 2, and a pool).
        feature_dim: width of a projection after the network. None for no projection: z then has
            width 512 with basic blocks and width 2048 with bottlenecks.
        projection: layers of the projection, see ``project``.

    Raises:
        InputError: ``groups`` does not divide 64.
    """
    network = LevelResNet(_BLOCKS[block], layers, norm_layer=norm_layer(norm, groups, channels=64))
    width = network.fc.in_features
    network.fc = nn.Identity()
    channels = image_channels(input_shape)
    if stem == "cifar":
        network.conv1 = nn.Conv2d(channels, 64, 3, padding=1, bias=False)
        network.maxpool = nn.Identity()
    else:
        network.conv1 = nn.Conv2d(channels, 64, 7, stride=2, padding=3, bias=False)
    if not norm_in_blocks:
        _keep_norms_of_shortcuts(network)
    return project(without_inplace(network), width, feature_dim, projection)


def _keep_norms_of_shortcuts(network: ResNet) -> None:
    for module in list(network.modules()):
        if isinstance(module, (ResNet, BasicBlock, Bottleneck)):
            for name in ("bn1", "bn2", "bn3"):
                if hasattr(module, name):
                    setattr(module, name, nn.Identity())
