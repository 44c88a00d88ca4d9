"""Find a backbone's feature width, operations and layers, if possible without making weights."""

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from fedexp.config.constructed import failed, innermost, target_name
from fedexp.core.description import Description
from fedexp.core.fixed_weights import fixed_layers
from fedexp.errors import InputError

Result = TypeVar("Result")


def for_inputs(build: Callable[..., nn.Module], about: Description) -> Callable[..., nn.Module]:
    """Set the arguments ``vocabulary`` and ``per_token`` of ``build`` to a dataset's values.

    Args:
        build: builds a backbone, with all hyper-parameters already set. If the backbone takes
            tokens, ``build`` has an argument ``vocabulary``; if the backbone can take numbers too,
            this argument has a default. If the backbone can compute features of each token,
            ``build`` has an argument ``per_token``.
        about: description of the dataset.

    Returns:
        ``build`` with these arguments set; its only required argument is ``input_shape``.

    Raises:
        InputError: the model takes numbers and the dataset has tokens, or vice versa.
    """
    vocabulary = inspect.signature(build).parameters.get("vocabulary")
    if not about.vocabulary and (vocabulary is None or vocabulary.default is not vocabulary.empty):
        return build
    if not about.vocabulary:
        raise InputError(
            f"model: {_name(build)} takes sequences of tokens, but {about.name} has inputs of "
            f"{_times(about.input_shape)} numbers; try model=mlp"
        )
    if vocabulary is None:
        raise InputError(
            f"model: {_name(build)} takes numbers, but {about.name} has sequences of tokens; "
            "use model=char_lstm"
        )
    build = partial(build, vocabulary=about.vocabulary)
    if about.per_token and "per_token" in inspect.signature(build).parameters:
        return partial(build, per_token=True)
    return build


def feature_dim(
    build: Callable[..., nn.Module], input_shape: tuple[int, ...], per_token: bool = False
) -> int:
    """Find the width d of a backbone's features z [B, d] by a forward pass.

    If possible, the pass runs on PyTorch's meta device. There it needs no memory and draws no
    random numbers.

    Args:
        build: builds the backbone, with all hyper-parameters already set.
        input_shape: shape of one input: [channels, height, width], [features] or [length].
        per_token: whether the backbone must compute features of each token, z [B, L, d].

    Raises:
        InputError: the model does not fit inputs of this shape, or its arguments are wrong.
    """

    def features(network: nn.Module, inputs: Tensor) -> Tensor:
        _set_mode(network, train=False)
        z: Tensor = network(inputs)
        return z

    try:
        z = _apply(build, input_shape, features)
    except InputError:
        raise
    except AttributeError as error:  # such as a forgotten super().__init__()
        raise failed(target_name("model", build), build, error) from error
    except (AssertionError, RuntimeError, ValueError) as error:
        absent = isinstance(error, NotImplementedError)  # nn.Module's own forward
        advice = "define forward(x)" if absent else "an argument input_shape gets this shape"
        raise _misfit(build, input_shape, str(error).partition("\n")[0], advice) from error
    if not isinstance(z, Tensor):
        reason = f"it returns a {type(z).__name__}, not a tensor [B, d]"
        raise _misfit(build, input_shape, reason, "return the features alone")
    if per_token and (z.ndim != 3 or z.shape[1:2] != input_shape):
        raise InputError(
            f"model: {_name(build)} has features of shape {list(z.shape)} for sequences of "
            f"{input_shape[0]}, not [B, {input_shape[0]}, d]; these data have a target for each "
            "token; use model=char_lstm"
        )
    if (z.ndim != 2 and not per_token) or not z.numel():
        reason = f"its features have shape {list(z.shape)}, not [B, d]"
        raise _misfit(build, input_shape, reason, "end forward with pooling or flatten")
    return z.shape[-1]


def trains_on_one(build: Callable[..., nn.Module], input_shape: tuple[int, ...]) -> bool:
    """Whether the backbone can train on a batch of one sample.

    If BatchNorm gets a 1x1 feature map, the backbone cannot: one sample then gives one value for
    each channel, and one value has no variance. If clients have different backbones
    (``fedexp.models.mixed``), all of them are tried.
    """

    def train(network: nn.Module, inputs: Tensor) -> None:
        _set_mode(network, train=True)
        for each in getattr(network, "variants", [network]):
            each(inputs)

    try:
        _apply(build, input_shape, train, batch=1)
    except ValueError:
        return False
    return True


def forward_flops(build: Callable[..., nn.Module], input_shape: tuple[int, ...], batch: int) -> int:
    """Count the floating-point operations of a forward pass of ``batch`` samples.

    Only matrix products and convolutions are counted.
    """

    def count(network: nn.Module, inputs: Tensor) -> int:
        with FlopCounterMode(display=False) as counter:
            network.eval()(inputs)
        return int(counter.get_total_flops())

    return _apply(build, input_shape, count, batch)


def training_flops(
    build: Callable[..., nn.Module],
    input_shape: tuple[int, ...],
    num_classes: int,
    num_clients: int,
) -> np.ndarray:
    """Count each client's floating-point operations per sample of a forward and a backward pass.

    Only matrix products and convolutions are counted. The head is counted as one linear layer with
    ``num_classes`` outputs. Layers that do not train have no weight gradients to count. If clients
    have different backbones (``fedexp.models.mixed``), a client's own is counted.

    Returns:
        [N], for clients 0 to N - 1.
    """

    def count(network: nn.Module, inputs: Tensor) -> int:
        with torch.enable_grad(), FlopCounterMode(display=False) as counter:
            z = network.eval()(inputs)
            head = torch.zeros(z.shape[-1], num_classes, requires_grad=True)
            (z @ head).sum().backward()
        return int(counter.get_total_flops())

    def count_all(network: Any, inputs: Tensor) -> np.ndarray:
        if not hasattr(network, "variants"):
            return np.full(num_clients, float(count(network, inputs)))
        flops = np.array([float(count(each, inputs)) for each in network.variants])
        of_clients: list[int] = network.variant_of_clients(num_clients)
        return flops[of_clients]

    batch = 2
    return _apply(build, input_shape, count_all, batch) / batch


def outline(build: Callable[..., nn.Module], input_shape: tuple[int, ...]) -> nn.Module:
    """Build the backbone, if possible on PyTorch's meta device, where tensors have no data."""
    return _apply(build, input_shape, lambda network, inputs: network)


def _set_mode(network: nn.Module, train: bool) -> None:
    """Set train or eval mode; layers with fixed buffers are always in eval mode."""
    network.train(train)
    for layer in fixed_layers(network).values():
        layer.train(False)


def _apply(
    build: Callable[..., nn.Module],
    input_shape: tuple[int, ...],
    use: Callable[[nn.Module, Tensor], Result],
    batch: int = 2,
) -> Result:
    """Call ``use(backbone, batch of zeros)``, if possible on the meta device, else on the CPU."""
    dtype = torch.int64 if _has_vocabulary(build) else None

    def used(device: str) -> Result:
        with torch.device(device), torch.no_grad():
            zeros = torch.zeros(batch, *input_shape, dtype=dtype)
            return use(build(input_shape=input_shape), zeros)

    try:
        return used("meta")
    except RuntimeError:
        # A few networks (RegNet) read widths from tensors, which the meta device does not support.
        with torch.random.fork_rng(devices=[]):
            return used("cpu")


def _misfit(
    build: Callable[..., nn.Module], input_shape: tuple[int, ...], reason: str, own_advice: str
) -> InputError:
    """The error about a backbone; ``own_advice`` is for the author of a network."""
    name, shape = _name(build), _times(input_shape)
    other = "try model=mlp, or images of another size" if len(input_shape) == 3 else "try model=mlp"
    advice = own_advice if is_own(build) else other
    return InputError(f"model: {name} does not fit inputs of {shape} ({reason}); {advice}")


def _has_vocabulary(build: Callable[..., nn.Module]) -> bool:
    """Whether ``for_inputs`` has set ``vocabulary``, so that the inputs are tokens."""
    vocabulary = inspect.signature(build).parameters.get("vocabulary")
    return vocabulary is not None and vocabulary.default not in (vocabulary.empty, 0)


def is_own(build: Callable[..., nn.Module]) -> bool:
    """Whether the backbone is a user's own class or function."""
    return not _target(build).__module__.startswith("fedexp.")


def _name(build: Callable[..., nn.Module]) -> str:
    target = _target(build)
    return getattr(target, "__name__", repr(target))


def _target(build: Callable[..., nn.Module]) -> Callable[..., nn.Module]:
    """The class or function of the config, without the wrappers of other rooms."""
    return innermost(inspect.unwrap(build))


def _times(shape: tuple[int, ...]) -> str:
    return "x".join(map(str, shape))
