"""The width of a backbone's features, known before the backbone is built."""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn

from fedexp.errors import InputError


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
        z: Tensor = build(input_shape=inputs[1:]).train(train)(torch.zeros(inputs))
    return z


def _misfit(
    build: Callable[..., nn.Module], input_shape: tuple[int, ...], reason: str
) -> InputError:
    target = build.func if isinstance(build, partial) else build
    name = getattr(target, "__name__", repr(target))
    shape = "x".join(map(str, input_shape))
    advice = "model=mlp, or images of another size" if len(input_shape) == 3 else "model=mlp"
    return InputError(f"model: {name} does not fit inputs of {shape} ({reason}); try {advice}")
