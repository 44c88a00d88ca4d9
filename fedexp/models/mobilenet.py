"""MobileNetV2, for small or large images."""

from math import gcd

from pydantic import PositiveInt
from torch import Tensor, nn
from torch.nn.functional import adaptive_avg_pool2d
from torchvision.models.mobilenetv2 import MobileNetV2
from torchvision.ops.misc import Conv2dNormActivation

from fedexp.config.compatibility.unread import declares_unread, given
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
from fedexp.models.weights import load_weights

_STAGE_ENDS = (1, 3, 6, 10)  # index in ``features`` of the last block with 16, 24, 32, 64 channels


class LevelMobileNetV2(MobileNetV2):  # type: ignore[misc]
    """torchvision's MobileNetV2 with five levels, from the stem and the first four stages."""

    def forward_levels(self, images: Tensor) -> tuple[Tensor, Levels]:
        """Compute z and five levels: means before the stem's ReLU6 and after each of four stages.

        The means are over height and width. A stage ends in a linear convolution or a sum, without
        a ReLU.
        """
        convolution, norm, relu = self.features[0]
        maps = norm(convolution(images))
        levels = [level(maps)]
        maps = relu(maps)
        for number, block in enumerate(self.features[1:], start=1):
            maps = block(maps)
            if number in _STAGE_ENDS:
                levels.append(level(maps))
        return self.classifier(adaptive_avg_pool2d(maps, (1, 1)).flatten(1)), tuple(levels)


@declares_unread(
    {
        "projection": {"feature_dim": (None,)},
        "groups": {"norm": ("batch",)},
        "weights": {"model.start_from": given},
    }
)
def mobilenet_v2(
    input_shape: tuple[int, ...],
    norm: Norm,
    groups: PositiveInt,
    stem: Stem,
    last_channel: PositiveInt,
    weights: str | None,
    feature_dim: PositiveInt | None,
    projection: Projection,
) -> nn.Module:
    """Build MobileNetV2 (Sandler et al., CVPR 2018) as a backbone; z is [B, last_channel].

    The network is torchvision's, without the classifier and its dropout. Initial weights are also
    torchvision's (Kaiming normal, fan_out), but those of the first convolution, which is made anew,
    are by PyTorch's rule for a layer. The levels
    (``fedexp.models.levels``) come from the stem and the first four stages.

    Args:
        input_shape: [channels, height, width].
        norm: "group" or "batch" normalisation.
        groups: number of groups in group normalisation; must divide 8 and ``last_channel``.
        stem: "cifar" begins with stride 1, "imagenet" with stride 2.
        last_channel: channels of the last 1x1 convolution, 1280 in the paper.
        weights: None (random), "imagenet" or the path of a state dict, see ``load_weights``. If
            ``last_channel`` is not 1280, the last convolution keeps its random weights.
        feature_dim: width of a projection after the network; None for no projection.
        projection: layers of the projection, see ``project``.

    Raises:
        InputError: ``groups`` does not divide the numbers of channels, or ``weights`` do not fit.
    """
    layer = norm_layer(norm, groups, channels=gcd(8, last_channel))
    network = LevelMobileNetV2(norm_layer=layer)
    replaced = ["classifier."]
    if last_channel != network.last_channel:
        last = Conv2dNormActivation(
            320, last_channel, kernel_size=1, norm_layer=layer, activation_layer=nn.ReLU6
        )
        nn.init.kaiming_normal_(last[0].weight, mode="fan_out")  # as torchvision's other layers
        network.features[-1] = last
        replaced.append("features.18.")
    network.classifier = nn.Identity()
    channels, stride = image_channels(input_shape), 1 if stem == "cifar" else 2
    network.features[0][0] = nn.Conv2d(channels, 32, 3, stride=stride, padding=1, bias=False)
    if weights is not None:
        load_weights(network, weights, "mobilenet_v2", replaced)
    return project(without_inplace(network), last_channel, feature_dim, projection)
