"""Keyed randomness: each purpose has its own key, and each key its own generator.

A generator depends on its key alone, not on earlier draws. So the order of clients, the engine, the
number of processes, and a stop and resume do not change results. Two methods with the same seed see
the same partition, cohorts and batches.
"""

import hashlib
import math
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor

_GOLDEN = 0x9E3779B97F4A7C15 - 2**64  # a signed 64-bit integer: products wrap around
_MIX = ((30, 0xBF58476D1CE4E5B9 - 2**64), (27, 0x94D049BB133111EB - 2**64))


def key(seed: int, purpose: str, *parts: int) -> int:
    """A 63-bit seed of one random stream, for example ``key(0, "batches", round, client)``."""
    name = "/".join([str(seed), purpose, *map(str, parts)])
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "big") >> 1


def torch_generator(seed: int, purpose: str, *parts: int) -> torch.Generator:
    """A CPU ``torch.Generator`` for this key."""
    return torch.Generator().manual_seed(key(seed, purpose, *parts))


def seed_layers(device: torch.device, seed: int, purpose: str, *parts: int) -> None:
    """Seed the global generator that layers such as dropout use on ``device``.

    ``torch.manual_seed`` also seeds all other accelerators. That takes longer than a training step
    of a small model.
    """
    if device.type not in ("cpu", "meta"):
        torch.get_device_module(device).manual_seed(key(seed, purpose, *parts))
    torch.default_generator.manual_seed(key(seed, purpose, *parts))


def numpy_generator(seed: int, purpose: str, *parts: int) -> np.random.Generator:
    """A ``numpy.random.Generator`` for this key."""
    return np.random.default_rng(key(seed, purpose, *parts))


@contextmanager
def seeded(seed: int, purpose: str, *parts: int) -> Iterator[None]:
    """Seed PyTorch's global CPU generator inside the block, for initial weights."""
    with torch.random.fork_rng(devices=[]):  # other devices may belong to other processes
        torch.manual_seed(key(seed, purpose, *parts))
        yield


def uniform(key: Tensor, step: Tensor | int, *shape: int) -> Tensor:
    """Uniform numbers in [0, 1), float32 multiples of 2^-24, a pure function of ``key, step``.

    Use this function inside a training step: ``torch.func.vmap`` can run it for many clients at
    once, and its values are the same on every device and in every engine. A call for more rows
    returns the same first rows. The generator is SplitMix64 (Steele et al., OOPSLA 2014).

    Args:
        key: a scalar int64 tensor, such as ``key(...)`` of a client and round.
        step: the number of the draw, an int or a scalar int64 tensor.
        shape: shape of the result, rows first.
    """
    # torch.compile gives wrong products of a plain range with a number as large as ``_GOLDEN``.
    zero = key - key
    count = torch.arange(1, math.prod(shape) + 1, device=key.device) + zero
    bits = _mixed(_mixed(key + step) + count * _GOLDEN)
    return (_shifted(bits, 40) / 2**24).view(shape)


def normal(key: Tensor, step: Tensor | int, *shape: int) -> Tensor:
    """Standard normal numbers, a pure function of ``key, step`` like ``uniform``, from its numbers.

    Each number is $sqrt(-2 log(1 - u)) cos(2 pi v)$ of two uniform numbers u and v (Box and Muller,
    1958). The arguments are those of ``uniform``.
    """
    u, v = uniform(key, step, *shape, 2).unbind(dim=-1)
    return (-2 * torch.log1p(-u)).sqrt() * torch.cos(2 * math.pi * v)


def _mixed(bits: Tensor) -> Tensor:
    """Mix the int64 ``bits`` with the last steps of the random generator SplitMix64."""
    for shift, factor in _MIX:
        bits = (bits ^ _shifted(bits, shift)) * factor
    return bits ^ _shifted(bits, 31)


def _shifted(bits: Tensor, shift: int) -> Tensor:
    """Shift int64 ``bits`` right as if they were unsigned."""
    shifted: Tensor = (bits >> shift) & (2 ** (64 - shift) - 1)
    return shifted
