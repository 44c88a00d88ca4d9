"""The job as every contender gets it, and the clock that times its rounds."""

import os
import sys
import time
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version
from multiprocessing.connection import Connection

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclass(frozen=True)
class Task:
    """FedAvg with a fresh SGD for each client and round; every client is in every round.

    Attributes:
        model: the global model before the first round.
        inputs: [n, ...] float32, normalised.
        labels: [n].
        clients: the positions of each client's samples.
        sgd: the arguments of ``torch.optim.SGD``.
        epochs: passes over a client's samples in a round.
        batch_size: samples in a step.
        rounds: the number of timed rounds, of which the first warms up.
        threads: the number of PyTorch's threads.
        overrides: the same job as overrides of fedexp.
    """

    model: nn.Module
    inputs: Tensor
    labels: Tensor
    clients: list[Tensor]
    sgd: dict[str, float]
    epochs: int
    batch_size: int
    rounds: int
    threads: int
    overrides: list[str]

    def data(self, client: int) -> tuple[Tensor, Tensor]:
        index = self.clients[client]
        return self.inputs[index], self.labels[index]

    def train(self, model: nn.Module, client: int) -> None:
        """One client's turn, as a researcher would write it by hand."""
        index = self.clients[client]
        lr, momentum, decay = (self.sgd[name] for name in ("lr", "momentum", "weight_decay"))
        sgd = torch.optim.SGD(model.parameters(), lr, momentum, weight_decay=decay)
        for _ in range(self.epochs):
            for chunk in index[torch.randperm(len(index))].split(self.batch_size):
                sgd.zero_grad()
                F.cross_entropy(model(self.inputs[chunk]), self.labels[chunk]).backward()
                sgd.step()

    @torch.no_grad()
    def loss(self, model: nn.Module) -> float:
        """Mean cross-entropy over all samples; it shows whether a contender has trained."""
        model.eval()
        pairs = zip(self.inputs.split(500), self.labels.split(500), strict=True)
        losses = [F.cross_entropy(model(x), y, reduction="sum") for x, y in pairs]
        return float(sum(losses)) / len(self.labels)


class Clock:
    """Times the rounds that ``bench.py peers`` asks for, through a connection to that program."""

    def __init__(self, package: str) -> None:
        descriptor = int(sys.argv[1])
        os.set_inheritable(descriptor, False)
        self._connection = Connection(descriptor)
        self._connection.send(version(package))

    def start(self) -> None:
        """Wait until the next round is asked for; then start to measure."""
        self._connection.recv()
        self._start = time.perf_counter()

    def stop(self) -> None:
        self._connection.send(time.perf_counter() - self._start)

    def finish(self, loss: float) -> None:
        """Send the final model's loss; call this after the last round."""
        self._connection.send(loss)


@cache
def load() -> Task:
    """The task; each process of a contender reads it once."""
    task: Task = torch.load(os.environ["PEERS_TASK"], weights_only=False)
    return task
