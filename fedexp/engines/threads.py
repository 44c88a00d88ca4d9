"""``engine.threads``: the number of CPU threads of PyTorch.

PyTorch's threads wait for each other, so one thread on a busy core delays all the others. Small
steps gain nothing from more threads.
"""

import os
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import nn

from fedexp.config.schema import Config
from fedexp.distributed.ranks import Ranks
from fedexp.models.shape import forward_flops

_FLOPS_OF_A_THREAD = 40_000_000
"""Floating-point operations of a forward pass that are worth one more thread.

The table has a cell for each model and batch size B: the MFLOP of the forward pass, then the time
of a training step with two threads divided by its time with one thread. Times are CPU seconds of
the main thread, because the machine was busy:

| mlp, B=16 | simple_cnn, B=16 | simple_cnn, B=64 | conv2cifar, B=4 | B=16 | B=64 |
|---|---|---|---|---|---|
| 1: 1.17 | 21: 1.30 | 83: 0.75 | 118: 0.70 | 470: 0.59 | 1880: 0.51 |
"""


@contextmanager
def restored_threads() -> Iterator[None]:
    """Restore PyTorch's number of threads at the end of the block."""
    before = torch.get_num_threads()
    try:
        yield
    finally:
        torch.set_num_threads(before)


def set_threads(
    config: Config,
    backbone: Callable[..., nn.Module],
    input_shape: tuple[int, ...],
    device: torch.device,
    ranks: Ranks,
) -> None:
    """Set PyTorch's number of threads, the same at all ranks; every rank must call it.

    ``engine.threads=auto`` does not change the number on a GPU, or if the environment has
    OMP_NUM_THREADS.

    Args:
        config: the run's config.
        backbone: builds the backbone for an ``input_shape``.
        input_shape: shape of one sample.
        device: the device for training.
        ranks: the processes of the run.
    """
    if config.engine.threads != "auto":
        torch.set_num_threads(config.engine.threads)
    elif device.type == "cpu" and not any(ranks.all_gather("OMP_NUM_THREADS" in os.environ)):
        flops = forward_flops(backbone, input_shape, config.local.batch_size)
        most = min(torch.get_num_threads(), _own_cores(ranks))
        torch.set_num_threads(min(ranks.all_gather(worthwhile_threads(flops, most))))


def worthwhile_threads(flops: int, most: int) -> int:
    """The number of threads for a training step, at least one and at most ``most``.

    It does not depend on the machine's load or the clock, so a run repeats to the bit.

    Args:
        flops: floating-point operations of the step's forward pass.
        most: the largest number of threads.
    """
    return max(1, min(most, flops // _FLOPS_OF_A_THREAD))


def _own_cores(ranks: Ranks) -> int:
    """The number of cores that this process may use, divided by the ranks that share them."""
    import joblib  # respects the CPU limits of containers; slow to import

    allowed = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    own = socket.gethostname(), allowed
    return int(joblib.cpu_count()) // ranks.all_gather(own).count(own)
