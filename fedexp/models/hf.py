"""Hugging Face transformers for tokens or images, with pooled features or features per token."""

import inspect
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import torch
from pydantic import NonNegativeInt, PositiveInt
from torch import Tensor, nn

from fedexp.config.compatibility.unread import declares_unread
from fedexp.config.optional import optional
from fedexp.errors import InputError, first_line
from fedexp.models.layers import Projection, image_channels, project, similar
from fedexp.models.weights import reads_initial_weights
from fedexp.models.zoo import GreyToColour

Pooling = Literal["mean", "first", "last", "pooler"]
Weights = Literal["pretrained"]

_FAILURES = (OSError, ValueError, RuntimeError, TypeError, KeyError, AttributeError, ImportError)
"""Errors that transformers raises for a model that it cannot build."""


class Pooled(nn.Module):
    """A transformer whose output states are pooled to z [B, d]; without pooling z is [B, L, d].

    Args:
        network: a network of ``transformers``; it takes ``input_ids`` or ``pixel_values``.
        pooling: "mean" averages the last layer's states over the tokens, "first" and "last" take
            one state. "pooler" uses the network's own pooling layer. None means no pooling.
        pad_token: token id of padding, or None if there is no padding. The attention, "mean" and
            "last" ignore padding.
    """

    def __init__(self, network: nn.Module, pooling: Pooling | None, pad_token: int | None) -> None:
        super().__init__()
        self.network, self.pooling, self.pad_token = network, pooling, pad_token

    def forward(self, inputs: Tensor) -> Tensor:
        """Compute features z of token ids [B, L] int64 or images [B, channels, height, width]."""
        if inputs.is_floating_point():
            return self._pool(self.network(pixel_values=inputs), None)
        if self.pad_token is None:
            return self._pool(self.network(input_ids=inputs), None)
        real = inputs != self.pad_token
        return self._pool(self.network(input_ids=inputs, attention_mask=real.long()), real)

    def prepare_for_vmap(self) -> None:
        """Use an attention that ``torch.func.vmap`` supports.

        ``engine=vectorized`` and ``aggregator=fisher_weighted`` call this.

        Raises:
            InputError: ``pad_token`` is set; vmap does not support the mask of the padding.
        """
        if self.pad_token is not None:
            raise InputError(
                "engine=vectorized: the padding mask of model=hf cannot be stacked; use "
                "engine=serial, or model.pad_token=null"
            )
        network: Any = self.network
        network.set_attn_implementation("eager")

    def _pool(self, outputs: Any, real: Tensor | None) -> Tensor:
        """Pool the network's outputs to features z. ``real`` [B, L] is false for padding tokens."""
        if self.pooling == "pooler":
            pooled: Tensor = outputs.pooler_output
            return pooled.flatten(1)
        states: Tensor = outputs.last_hidden_state
        if self.pooling is None:
            return states
        if states.dim() == 4:  # feature maps [B, d, height, width]
            states = states.flatten(2).transpose(1, 2)
        if self.pooling == "first":
            return states[:, 0]
        if real is None:
            return states[:, -1] if self.pooling == "last" else states.mean(dim=1)
        if self.pooling == "mean":
            kept = real[..., None].to(states.dtype)
            return (states * kept).sum(dim=1) / kept.sum(dim=1).clamp(min=1)
        places = torch.arange(real.shape[1], device=real.device)
        last = (places * real).amax(dim=1)
        return states[torch.arange(states.shape[0], device=states.device), last]


@declares_unread({"projection": {"feature_dim": (None,)}})
def hf_model(
    input_shape: tuple[int, ...],
    name: str,
    weights: Weights | None,
    config: Mapping[str, Any] | None,
    pooling: Pooling,
    pad_token: NonNegativeInt | None,
    feature_dim: PositiveInt | None,
    projection: Projection,
    vocabulary: int = 0,
    per_token: bool = False,
) -> nn.Module:
    """Build a model of ``transformers`` without its head, as a backbone.

    With random weights, the network is built for the size and the number of channels of the images,
    or for the vocabulary of the tokens. With pretrained weights, grey images are repeated to three
    channels.

    Args:
        input_shape: [length] of token sequences, or [channels, height, width].
        name: a type of model, such as "bert" or "vit"; a folder that ``save_pretrained`` wrote; or
            the name of a model on the Hugging Face hub, which is downloaded.
        weights: None (random) or "pretrained" (the trained weights of ``name``).
        config: values that override the model's config, such as ``hidden_size``.
        pooling: how the last layer's states become features, see ``Pooled``.
        pad_token: token id of padding; None if there is none.
        feature_dim: width of a projection after the network; None for no projection.
        projection: layers of the projection, see ``project``.
        vocabulary: number of different tokens; 0 for images.
        per_token: whether to return features of each token, without pooling; set by the dataset.

    Raises:
        InputError: transformers is not installed, has no such model or cannot build it.
        ValueError: the inputs are neither images nor tokens.
    """
    library = optional("model=hf", "transformers", "hf")
    channels = 0 if vocabulary else image_channels(input_shape)
    changes = config or {}
    settings = _settings(library, name, changes)
    if not weights:
        _fit_to_inputs(settings, input_shape, vocabulary, pad_token, given=changes)
    elif vocabulary > (known := getattr(settings, "vocab_size", 0)):
        raise InputError(
            f"model.weights={weights}: {name} knows {known} tokens, the data have {vocabulary}; "
            "use model.weights=null or another model"
        )
    chosen = None if per_token else pooling
    network = _network(library, name, settings, weights, chosen)
    _check_input(name, network, vocabulary)
    backbone: nn.Module = Pooled(network, chosen, pad_token)
    if channels == 1 and getattr(settings, "num_channels", 1) == 3:
        backbone = nn.Sequential(GreyToColour(), backbone)
    if feature_dim is None:
        return backbone
    dtype = torch.int64 if vocabulary else torch.float32
    with torch.no_grad():
        width = backbone.eval()(torch.zeros(2, *input_shape, dtype=dtype)).shape[-1]
    return project(backbone.train(), width, feature_dim, projection)


def _settings(library: Any, name: str, changes: Mapping[str, Any]) -> Any:
    """The transformers config of the model ``name``, changed by the values in ``changes``."""
    kinds = list(library.CONFIG_MAPPING)
    try:
        if name in kinds:
            settings = library.AutoConfig.for_model(name)
        else:
            settings = library.AutoConfig.from_pretrained(name)
    except _FAILURES as error:
        hint = "" if Path(name).exists() else similar(name, kinds)
        raise InputError(
            f"model.name={name}: {hint and f'{hint} '}transformers has no such type of model, and "
            f"there is no such folder or hub model ({first_line(error)})"
        ) from error
    for key, value in changes.items():
        if not hasattr(settings, key):
            known = [each for each in settings.to_dict() if not each.startswith("_")]
            hint = similar(key, known) or f"there are {', '.join(known)}"
            raise InputError(f"model.config.{key}: {name} has no such key; {hint}")
        setattr(settings, key, value)
    return settings


def _fit_to_inputs(
    settings: Any,
    input_shape: tuple[int, ...],
    vocabulary: int,
    pad_token: int | None,
    given: Mapping[str, Any],
) -> None:
    """Set the input sizes in ``settings`` to fit the data, except for the keys in ``given``."""
    fitting: dict[str, int | None] = {"num_channels": input_shape[0], "image_size": input_shape[-1]}
    if vocabulary:
        # The embedding of this padding token gets no gradient, so it must be no other token.
        fitting = {"vocab_size": vocabulary, "pad_token_id": pad_token}
    for key, value in fitting.items():
        if key not in given and hasattr(settings, key):
            setattr(settings, key, value)


def _network(
    library: Any, name: str, settings: Any, weights: Weights | None, pooling: Pooling | None
) -> nn.Module:
    """Build the network, and load pretrained weights if ``weights`` is set.

    On the meta device, or inside ``without_initial_weights``, nothing is loaded. An unused pooling
    layer is left out if the network allows this.
    """
    on_meta = torch.get_default_device().type == "meta"  # no weights can be loaded there
    try:
        kind = library.MODEL_MAPPING[type(settings)]
        options = {"add_pooling_layer": pooling == "pooler"}
        if not options.keys() <= inspect.signature(kind.__init__).parameters.keys():
            options = {}
        if weights is None or on_meta or not reads_initial_weights():
            network: nn.Module = library.AutoModel.from_config(settings, **options)
            return network
        network, loaded = library.AutoModel.from_pretrained(
            name, config=settings, dtype=torch.float32, output_loading_info=True, **options
        )
    except _FAILURES as error:
        if on_meta and isinstance(error, RuntimeError):
            raise  # ``fedexp.models.shape`` builds the network again on the CPU
        raise InputError(
            f"model.name={name}: transformers cannot make it ({first_line(error)})"
        ) from error
    for problem in ("missing_keys", "mismatched_keys"):
        if found := sorted(map(str, loaded[problem])):
            raise InputError(
                f"model.weights={weights}: do not fit {name} here: {problem.replace('_', ' ')}: "
                f"{found[0]}" + (f" and {len(found) - 1} more" if len(found) > 1 else "")
            )
    return network


def _check_input(name: str, network: nn.Module, vocabulary: int) -> None:
    """Raise InputError if the network takes images and the data are tokens, or vice versa."""
    taken = inspect.signature(network.forward).parameters
    if vocabulary and "input_ids" not in taken:
        raise InputError(
            f"model.name={name}: takes no tokens, but the data are tokens; try bert or gpt2"
        )
    if not vocabulary and "pixel_values" not in taken:
        raise InputError(f"model.name={name}: takes no images, but the data are images; try vit")
