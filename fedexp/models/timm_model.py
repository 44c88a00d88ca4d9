"""Any network of the library timm, by name."""

from collections.abc import Mapping
from typing import Any

import torch
from pydantic import PositiveInt
from torch import nn

from fedexp.config.compatibility.unread import declares_unread, given
from fedexp.config.optional import optional
from fedexp.errors import InputError
from fedexp.models.layers import Projection, image_channels, project, similar, without_inplace
from fedexp.models.weights import load_file, reads_initial_weights
from fedexp.models.zoo import GreyToColour

PRETRAINED = "pretrained"


@declares_unread({"projection": {"feature_dim": (None,)}, "weights": {"model.start_from": given}})
def timm_model(
    input_shape: tuple[int, ...],
    name: str,
    weights: str | None,
    options: Mapping[str, Any] | None,
    feature_dim: PositiveInt | None,
    projection: Projection,
) -> nn.Module:
    """Build a network of timm without its classifier, as a backbone.

    The network takes images with any number of channels. With ``in_chans: 3`` in ``options``, grey
    images are repeated to three channels.

    Args:
        input_shape: [channels, height, width].
        name: a name of ``timm.list_models()``, such as "resnet18" or "resnet18.a1_in1k".
        weights: None (random), "pretrained" (downloaded by timm) or the path of a state dict.
        options: further arguments of ``timm.create_model``, such as ``img_size``.
        feature_dim: width of a projection after the network; None for no projection.
        projection: layers of the projection, see ``project``.

    Raises:
        InputError: timm is not installed or has no such network, or an argument does not fit.
        ValueError: the inputs are not images.
    """
    timm = optional("model=timm", "timm", "timm")
    channels = image_channels(input_shape)
    if not timm.is_model(name) and not name.startswith(("hf-hub:", "hf_hub:", "local-dir:")):
        hint = similar(name, timm.list_models()) or "see timm.list_models()"
        raise InputError(f"model.name={name}: timm has no such network; {hint}")
    on_meta = torch.get_default_device().type == "meta"  # no weights can be loaded there
    loads = weights == PRETRAINED and not on_meta and reads_initial_weights()
    arguments = {"in_chans": channels, **(options or {}), "num_classes": 0}
    try:
        network: Any = timm.create_model(name, pretrained=loads, **arguments)
    except (TypeError, RuntimeError, ValueError, AssertionError, OSError) as error:
        if on_meta and isinstance(error, RuntimeError):
            raise  # ``fedexp.models.shape`` builds the network again on the CPU
        reason = str(error).partition("\n")[0]
        raise InputError(f"model.name={name}: timm cannot make it ({reason})") from error
    network = without_inplace(network)
    if weights is not None and weights != PRETRAINED:
        classifiers = network.pretrained_cfg.get("classifier") or ()
        names = [classifiers] if isinstance(classifiers, str) else classifiers
        replaced = [f"{each}." for each in names]
        load_file(network, weights, f"model.weights={weights}", name, replaced, PRETRAINED)
    backbone = project(network, network.head_hidden_size, feature_dim, projection)
    if channels == 1 and arguments["in_chans"] == 3:
        return nn.Sequential(GreyToColour(), backbone)
    return backbone
