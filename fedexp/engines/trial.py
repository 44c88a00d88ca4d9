"""Short trials of local training that leave nothing behind, to find out what is fast."""

import math
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from copy import copy
from dataclasses import replace
from typing import Any, TypeVar

import torch

from fedexp.core.messages import Message
from fedexp.data.federated import ClientData
from fedexp.engines.base import Engine
from fedexp.engines.resources import Resources
from fedexp.state.client_store import ClientStore

T = TypeVar("T")

_BATCHES = 4
"""Batches that a client trains on in a trial."""

_SECONDS = 1.0
"""Time after which a trial ends."""

_TURNS = 15
"""Times that each way is measured at most."""


@contextmanager
def trial_resources(resources: Resources, clients: Sequence[int]) -> Iterator[Resources]:
    """Resources for a trial with ``clients``: one epoch of a few batches, empty client states.

    What is trained with them changes the resident module, which is loaded anew for each client, and
    nothing else: the clients' states are others, and the random numbers go on as before.
    """
    data = copy(resources.data)
    data.clients = _Shortened(data.clients, clients, _BATCHES * resources.local.batch_size)
    local = resources.local.model_copy(update={"epochs": 1})
    device = resources.fabric.device
    with (
        torch.random.fork_rng(devices=[device] if device.type == "cuda" else []),
        closing(ClientStore("off", math.inf)) as store,
    ):
        yield replace(resources, data=data, local=local, store=store)


class _Shortened(Sequence[ClientData]):
    """Only clients with these ``numbers`` can be had, with at most ``samples`` each."""

    def __init__(self, clients: Sequence[ClientData], numbers: Sequence[int], samples: int) -> None:
        whole = {number: clients[number] for number in numbers}
        self._length = len(clients)
        self._clients = {
            number: replace(each, train_index=each.train_index[:samples])
            for number, each in whole.items()
        }

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, client: Any) -> Any:
        return self._clients[client]


def train_once(engine: Engine, clients: Sequence[int], message: Message) -> None:
    """Train the clients to the end, and drop their updates."""
    for _ in engine.train(clients, message):
        pass
    if engine.resources.fabric.device.type == "cuda":
        torch.cuda.synchronize(engine.resources.fabric.device)


def measure(ways: Mapping[T, Callable[[], object]]) -> dict[T, float]:
    """Median seconds of each way, called in turns.

    The first turn is a warm-up, which counts only if it takes so long that it is the only one.
    """
    seconds: dict[T, list[float]] = {way: [] for way in ways}
    begin = time.perf_counter()
    for _ in range(1 + _TURNS):
        for way, call in ways.items():
            start = time.perf_counter()
            call()
            seconds[way].append(time.perf_counter() - start)
        if time.perf_counter() - begin > _SECONDS:
            break
    return {way: statistics.median(times[1:] or times) for way, times in seconds.items()}


def typical_clients(resources: Resources, count: int) -> list[int]:
    """``count`` clients with data, or as many as there are, at even steps in order of size."""
    sizes = resources.data.sizes
    by_size = [client for client in sizes.argsort(stable=True).tolist() if sizes[client]]
    count = min(count, len(by_size))
    return [by_size[(2 * place + 1) * len(by_size) // (2 * count)] for place in range(count)]
