"""Layers and checks that several backbones share."""

from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from typing import Literal

import torch
from torch import Tensor, nn

from fedexp.errors import InputError
from fedexp.models.levels import HasLevels, LevelSequential

Norm = Literal["group", "batch"]
Stem = Literal["cifar", "imagenet"]
Projection = Literal["linear_relu", "mlp"]


def image_channels(input_shape: tuple[int, ...]) -> int:
    """The channels of images [channels, height, width]. Raises ValueError for any other shape."""
    if len(input_shape) != 3:
        raise ValueError("it needs images [channels, height, width]")
    return input_shape[0]


def flat_width(trunk: nn.Module, input_shape: tuple[int, ...]) -> int:
    """Number of elements that ``trunk`` gives for one input of zeros.

    The pass is in eval mode, so that zeros enter no BatchNorm statistics and dropout draws nothing.
    """
    training = trunk.training
    with torch.no_grad():
        flat: Tensor = trunk.eval()(torch.zeros(1, *input_shape))
    trunk.train(training)
    return flat.numel()


def dense(widths: Sequence[int]) -> nn.Sequential:
    """Linear-ReLU from each width to the next: [B, widths[0]] to [B, widths[-1]]."""
    layers: list[nn.Module] = []
    for before, after in pairwise(widths):
        layers += [nn.Linear(before, after), nn.ReLU()]
    return nn.Sequential(*layers)


def project(
    network: nn.Module, width: int, feature_dim: int | None, projection: Projection
) -> nn.Module:
    """``network`` as it is, or followed by linear layers; its levels stay the same.

    Args:
        network: gives [B, width].
        width: native width of its features.
        feature_dim: None for no projection, or the width d of the features after it.
        projection: "linear_relu" is Linear(width, d)-ReLU; "mlp" is Linear(width, width)-ReLU-
            Linear(width, d), whose features may be negative (MOON, Li et al., CVPR 2021).

    Raises:
        InputError: "mlp" without a ``feature_dim``.
    """
    if feature_dim is None:
        if projection == "mlp":
            raise InputError("model.projection=mlp: needs a width, set model.feature_dim")
        return network
    sequential = LevelSequential if isinstance(network, HasLevels) else nn.Sequential
    if projection == "mlp":
        return sequential(network, dense([width, width]), nn.Linear(width, feature_dim))
    return sequential(network, dense([width, feature_dim]))


def norm_layer(norm: Norm, groups: int, channels: int) -> Callable[[int], nn.Module]:
    """Constructor of a normalisation layer, given its channels.

    Args:
        norm: "group" (no running statistics to average over clients) or "batch".
        groups: groups of a GroupNorm; a BatchNorm has none.
        channels: greatest common divisor of all the channel counts of the network.

    Raises:
        InputError: ``groups`` does not divide the channels.
    """
    if norm == "batch":
        return nn.BatchNorm2d
    if channels % groups:
        raise InputError(f"model.groups={groups}: must divide {channels}")
    return partial(nn.GroupNorm, groups)


def without_inplace(network: nn.Module) -> nn.Module:
    """``network`` with no activation that works in place.

    Second-order gradients and ``torch.func.vmap`` need the values that it would overwrite.
    """
    for module in network.modules():
        if hasattr(module, "inplace"):
            module.inplace = False  # type: ignore[assignment]
    return network
