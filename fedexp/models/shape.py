"""The width of a backbone's features, known before the backbone is built."""

import inspect
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn

from fedexp.core.description import Description
from fedexp.errors import InputError


def for_inputs(build: Callable[..., nn.Module], about: Description) -> Callable[..., nn.Module]:
    """``build`` for the inputs of a dataset: a model for tokens learns how many there are.

    Args:
        build: a backbone's factory with its hyper-parameters bound. A factory for token sequences
            has an argument ``vocabulary``, others have not.
        about: the dataset.

    Returns:
        A factory that needs ``input_shape`` alone.

    Raises:
        InputError: a model for numbers gets tokens, or the other way round.
    """
    if not about.vocabulary and not _takes_tokens(build):
        return build
    if not about.vocabulary:
        raise InputError(
            f"model: {_name(build)} takes sequences of tokens, but {about.name} has inputs of "
            f"{_times(about.input_shape)} numbers; try model=mlp"
        )
    if not _takes_tokens(build):
        raise InputError(
            f"model: {_name(build)} takes numbers, but {about.name} has sequences of tokens; "
            "use model=char_lstm"
        )
    return partial(build, vocabulary=about.vocabulary)


def feature_dim(build: Callable[..., nn.Module], input_shape: tuple[int, ...]) -> int:
    """d, the width of the features z [B, d] that ``build(input_shape=input_shape)`` will give.

    A batch of shapes without data goes through a model of shapes without data (PyTorch's meta
    device), so it costs neither memory nor random numbers.

    Args:
        build: a backbone's factory with its hyper-parameters bound.
        input_shape: [channels, height, width] or [features].

    Raises:
        InputError: the model does not fit inputs of this shape, or its arguments are wrong.
    """
    try:
        z = _trial(build, input_shape)
    except InputError:
        raise
    except (AssertionError, RuntimeError, ValueError) as error:
        raise _misfit(build, input_shape, str(error).partition("\n")[0]) from error
    if z.ndim != 2 or not z.numel():
        raise _misfit(build, input_shape, f"its features have shape {list(z.shape)}, not [B, d]")
    return z.shape[1]


def trains_on_one(build: Callable[..., nn.Module], input_shape: tuple[int, ...]) -> bool:
    """Whether the backbone can be trained on a batch of one sample.

    BatchNorm on a 1x1 feature map cannot: one value has no variance.
    """
    try:
        _trial(build, input_shape, batch=1, train=True)
    except ValueError:
        return False
    return True


def _trial(
    build: Callable[..., nn.Module],
    input_shape: tuple[int, ...],
    batch: int = 2,
    train: bool = False,
) -> Tensor:
    """The features of a batch of zeros."""
    inputs = (batch, *input_shape)
    try:
        return _features(build, inputs, train, "meta")
    except NotImplementedError:
        # A few networks (RegNet) read their widths from tensors, which must hold data for that.
        with torch.random.fork_rng(devices=[]):
            return _features(build, inputs, train, "cpu")


def _features(
    build: Callable[..., nn.Module], inputs: tuple[int, ...], train: bool, device: str
) -> Tensor:
    with torch.device(device), torch.no_grad():
        zeros = torch.zeros(inputs, dtype=torch.int64 if _takes_tokens(build) else None)
        z: Tensor = build(input_shape=inputs[1:]).train(train)(zeros)
    return z


def _misfit(
    build: Callable[..., nn.Module], input_shape: tuple[int, ...], reason: str
) -> InputError:
    name, shape = _name(build), _times(input_shape)
    advice = "model=mlp, or images of another size" if len(input_shape) == 3 else "model=mlp"
    return InputError(f"model: {name} does not fit inputs of {shape} ({reason}); try {advice}")


def _takes_tokens(build: Callable[..., nn.Module]) -> bool:
    return "vocabulary" in inspect.signature(build).parameters


def _name(build: Callable[..., nn.Module]) -> str:
    while isinstance(build, partial):
        build = build.func
    return getattr(build, "__name__", repr(build))


def _times(shape: tuple[int, ...]) -> str:
    return "x".join(map(str, shape))
