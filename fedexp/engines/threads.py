"""``engine.threads=auto``: how many threads PyTorch computes with on the CPU.

Threads of PyTorch wait for each other without sleeping, so that one whose core is taken by another
program holds up the others. And small steps gain nothing from more threads.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial

import torch

from fedexp.core.messages import Message
from fedexp.engines.base import Engine
from fedexp.engines.trial import measure, train_once, trial_resources, typical_clients

_WORTH = 1.15
"""More threads are taken if fewer need so many times their time."""


@contextmanager
def restored_threads() -> Iterator[None]:
    """PyTorch's number of threads is afterwards what it was before."""
    before = torch.get_num_threads()
    try:
        yield
    finally:
        torch.set_num_threads(before)


def seconds_by_threads(engine: Engine, message: Message, most: int) -> dict[int, float]:
    """Number of threads -> seconds of a trial of local training: 1, 2, 4 and so on to ``most``."""
    client = typical_clients(engine.resources, 1)
    with restored_threads(), trial_resources(engine.resources, client) as resources:
        on_trial = engine.on_trial(resources)

        def train(threads: int) -> None:
            torch.set_num_threads(threads)
            train_once(on_trial, client, message)

        counts = sorted({most, *(2**power for power in range(most.bit_length()))})
        return measure({count: partial(train, count) for count in counts})


def fewest_worthwhile(seconds: Mapping[int, float]) -> int:
    """The fewest threads that more of them do not beat by a margin."""
    best = min(seconds.values())
    return min(count for count, taken in seconds.items() if taken <= _WORTH * best)
