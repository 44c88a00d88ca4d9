"""Layers and checks that several backbones use."""

from collections.abc import Callable, Iterable, Sequence
from difflib import get_close_matches
from functools import partial
from itertools import pairwise
from typing import Literal

import torch
from torch import Tensor, nn

from fedexp.errors import InputError
from fedexp.models.levels import HasLevels, LevelSequential

Norm = Literal["group", "batch"]
Stem = Literal["cifar", "imagenet"]
Projection = Literal["linear", "linear_relu", "mlp"]


def image_channels(input_shape: tuple[int, ...]) -> int:
    """Number of channels of images [channels, height, width]. Other shapes raise ValueError."""
    if len(input_shape) != 3:
        raise ValueError("it needs images [channels, height, width]")
    return input_shape[0]


def similar(name: str, known: Iterable[str]) -> str:
    """A question that lists the known names most like ``name``; empty if there are none."""
    close = ", ".join(get_close_matches(name, list(known)))
    return f"did you mean {close}?" if close else ""


def flat_width(trunk: nn.Module, input_shape: tuple[int, ...]) -> int:
    """Number of elements in the output of ``trunk`` for one input.

    The function runs a forward pass in eval mode, which changes no BatchNorm statistics and draws
    no random numbers.
    """
    training = trunk.training
    with torch.no_grad():
        flat: Tensor = trunk.eval()(torch.zeros(1, *input_shape))
    trunk.train(training)
    return flat.numel()


def dense(widths: Sequence[int], batch_norm: bool = False) -> nn.Sequential:
    """Build Linear-ReLU layers that map [B, widths[0]] to [B, widths[-1]].

    If ``batch_norm`` is true, a BatchNorm precedes each ReLU.
    """
    layers: list[nn.Module] = []
    for before, after in pairwise(widths):
        norm = [nn.BatchNorm1d(after)] if batch_norm else []
        layers += [nn.Linear(before, after), *norm, nn.ReLU()]
    return nn.Sequential(*layers)


def project(
    network: nn.Module, width: int, feature_dim: int | None, projection: Projection
) -> nn.Module:
    """Append a projection to ``network`` if ``feature_dim`` is set. The levels stay the same.

    Args:
        network: a network with outputs [B, width].
        width: width of the network's outputs.
        feature_dim: width d of the projected features, or None for no projection.
        projection: "linear" is Linear(width, d); "linear_relu" is Linear(width, d)-ReLU; "mlp" is
            Linear(width, width)-ReLU-Linear(width, d) (MOON, Li et al., CVPR 2021). Only the
            features of "linear_relu" are never negative.

    Raises:
        InputError: ``projection`` is "linear" or "mlp" and ``feature_dim`` is None.
    """
    if feature_dim is None:
        if projection != "linear_relu":
            raise InputError(f"model.projection={projection}: needs a width; set model.feature_dim")
        return network
    sequential = LevelSequential if isinstance(network, HasLevels) else nn.Sequential
    if projection == "mlp":
        return sequential(network, dense([width, width]), nn.Linear(width, feature_dim))
    if projection == "linear":
        return sequential(network, nn.Linear(width, feature_dim))
    return sequential(network, dense([width, feature_dim]))


def norm_layer(norm: Norm, groups: int, channels: int) -> Callable[[int], nn.Module]:
    """Find the constructor of a normalisation layer, a function of the number of channels.

    Args:
        norm: "group" for GroupNorm or "batch" for BatchNorm. GroupNorm has no running statistics
            that the server would average.
        groups: number of groups in a GroupNorm; unused for BatchNorm.
        channels: greatest common divisor of the numbers of channels in the network's layers.

    Raises:
        InputError: ``groups`` does not divide ``channels``.
    """
    if norm == "batch":
        return nn.BatchNorm2d
    if channels % groups:
        raise InputError(f"model.groups={groups}: must divide {channels}")
    return partial(nn.GroupNorm, groups)


def without_inplace(network: nn.Module) -> nn.Module:
    """Turn off in-place operations in ``network`` and return it.

    In-place operations overwrite values that second-order gradients and ``torch.func.vmap`` need.
    """
    for module in network.modules():
        if hasattr(module, "inplace"):
            module.inplace = False  # type: ignore[assignment]
    return network
