"""Keyed randomness: every draw comes from a generator keyed by its purpose.

A generator depends on its key alone, never on what was drawn before. So results do not change with
the order in which clients run, with the engine, with the number of processes, or with a kill and a
resume; and two methods with the same seed see the same partition, cohorts and batches.
"""

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch


def key(seed: int, purpose: str, *parts: int) -> int:
    """A 63-bit integer that names one stream, for example ``key(0, "batches", round, client)``."""
    name = "/".join([str(seed), purpose, *map(str, parts)])
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "big") >> 1


def torch_generator(seed: int, purpose: str, *parts: int) -> torch.Generator:
    """A CPU ``torch.Generator`` for this key."""
    return torch.Generator().manual_seed(key(seed, purpose, *parts))


def seed_layers(device: torch.device, seed: int, purpose: str, *parts: int) -> None:
    """Seed the global generator that layers such as dropout use on ``device``.

    ``torch.manual_seed`` would also seed every kind of accelerator, which takes longer than a small
    client's training step.
    """
    if device.type == "cuda":
        torch.cuda.manual_seed(key(seed, purpose, *parts))
    torch.default_generator.manual_seed(key(seed, purpose, *parts))


def numpy_generator(seed: int, purpose: str, *parts: int) -> np.random.Generator:
    """A ``numpy.random.Generator`` for this key."""
    return np.random.default_rng(key(seed, purpose, *parts))


@contextmanager
def seeded(seed: int, purpose: str) -> Iterator[None]:
    """Seed PyTorch's global CPU generator inside the block, for initial weights."""
    with torch.random.fork_rng(devices=[]):  # other devices may belong to other processes
        torch.manual_seed(key(seed, purpose))
        yield
