"""MobileNetV2, for small images or large ones."""

from pydantic import PositiveInt
from torch import nn
from torchvision.models.mobilenetv2 import MobileNetV2

from fedexp.models.layers import Norm, Stem, image_channels, norm_layer, project, without_inplace


def mobilenet_v2(
    input_shape: tuple[int, ...],
    norm: Norm,
    groups: PositiveInt,
    stem: Stem,
    feature_dim: PositiveInt | None,
) -> nn.Module:
    """torchvision's MobileNetV2 (Sandler et al., CVPR 2018) as a backbone with z [B, 1280].

    The dropout before its classifier goes with the classifier.

    Args:
        input_shape: [channels, height, width].
        norm: group or batch normalisation.
        groups: groups of a group normalisation; must divide 8.
        stem: "cifar" begins with stride 1, "imagenet" with stride 2.
        feature_dim: None for 1280, or the width of a Linear-ReLU after it.

    Raises:
        InputError: ``groups`` does not divide 8.
    """
    network = MobileNetV2(norm_layer=norm_layer(norm, groups, channels=8))
    network.classifier = nn.Identity()
    channels, stride = image_channels(input_shape), 1 if stem == "cifar" else 2
    network.features[0][0] = nn.Conv2d(channels, 32, 3, stride=stride, padding=1, bias=False)
    return project(without_inplace(network), network.last_channel, feature_dim)
