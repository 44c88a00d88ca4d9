"""Any of torchvision's classification networks, by name."""

from pydantic import PositiveInt
from torch import Tensor, nn
from torchvision import models

from fedexp.config.compatibility.unread import declares_unread, given
from fedexp.errors import InputError
from fedexp.models.layers import Projection, image_channels, project, similar, without_inplace
from fedexp.models.weights import load_weights

# Turn off the auxiliary classifiers, with which these networks return a tuple in training.
_PLAIN = {"aux_logits": False, "init_weights": False}
_OPTIONS = {"googlenet": _PLAIN, "inception_v3": _PLAIN}


class GreyToColour(nn.Module):
    """Repeats the channel of grey images: [B, 1, H, W] to [B, 3, H, W]."""

    def forward(self, images: Tensor) -> Tensor:
        """Repeat each image in three channels."""
        return images.expand(-1, 3, -1, -1)


@declares_unread({"projection": {"feature_dim": (None,)}, "weights": {"model.start_from": given}})
def torchvision_model(
    input_shape: tuple[int, ...],
    name: str,
    weights: str | None,
    feature_dim: PositiveInt | None,
    projection: Projection,
) -> nn.Module:
    """Build a torchvision network without its last linear layer, as a backbone.

    All other layers stay, including normalisation and dropout. Grey images are repeated to three
    channels.

    Args:
        input_shape: [1 or 3 channels, height, width].
        name: a name of ``torchvision.models.list_models()``, such as "mobilenet_v3_small".
        weights: None (random), "imagenet" or the path of a state dict, see ``load_weights``.
        feature_dim: width of a projection after the network; None for no projection.
        projection: layers of the projection, see ``project``.

    Raises:
        InputError: there is no such network, its classifier is not a linear layer, or
            ``weights`` do not fit it.
        ValueError: the inputs are not grey or colour images.
    """
    channels = image_channels(input_shape)
    if channels not in (1, 3):
        raise ValueError("torchvision's networks take 1 or 3 channels")
    network = without_inplace(_network(name))
    classifier, width = _remove_classifier(name, network)
    if weights is not None:
        load_weights(network, weights, name, replaced=[f"{classifier}."])
    backbone = project(network, width, feature_dim, projection)
    return backbone if channels == 3 else nn.Sequential(GreyToColour(), backbone)


def _network(name: str) -> nn.Module:
    known = models.list_models(module=models)
    if name not in known:
        hint = similar(name, known) or "see torchvision.models.list_models()"
        raise InputError(f"model.name={name}: torchvision has no such classifier; {hint}")
    network: nn.Module = models.get_model(name, weights=None, **_OPTIONS.get(name, {}))
    return network


def _remove_classifier(name: str, network: nn.Module) -> tuple[str, int]:
    """Replace the last linear layer by the identity; return its name and input width."""
    linear = [(path, each) for path, each in network.named_modules() if isinstance(each, nn.Linear)]
    if not linear:
        raise InputError(f"model.name={name}: has no linear classifier; use another network")
    path, classifier = linear[-1]
    network.set_submodule(path, nn.Identity())
    return path, classifier.in_features
