"""The job in fluke."""

from typing import Any

import torch
from fluke import DDict, FlukeENV
from fluke.algorithms.fedavg import FedAVG
from fluke.data import FastDataLoader
from fluke.utils import FederationObserver

from benchmark.peers.task import Clock, Task, load


class Split:
    """Gives every client its samples; there is no test data."""

    def __init__(self, task: Task) -> None:
        self.task = task

    def assign(self, n_clients: int, batch_size: int) -> Any:
        loaders = [
            FastDataLoader(
                *self.task.data(client),
                num_labels=int(self.task.labels.max()) + 1,
                batch_size=batch_size,
                shuffle=True,
                skip_singleton=False,
            )
            for client in range(n_clients)
        ]
        return (loaders, [None] * n_clients), None


class Timed(FederationObserver):
    def __init__(self, clock: Clock) -> None:
        self.clock = clock

    def start_round(self, round: int, global_model: Any) -> None:
        self.clock.start()

    def end_round(self, round: int) -> None:
        self.clock.stop()


def main() -> None:
    task, clock = load(), Clock("fluke-fl")
    torch.set_num_threads(task.threads)
    environment = FlukeENV()
    environment.set_device("cpu")
    environment.set_eval_cfg(pre_fit=False, post_fit=False, locals=False, server=False)
    client = DDict(
        batch_size=task.batch_size,
        local_epochs=task.epochs,
        loss="CrossEntropyLoss",
        optimizer=DDict(name="SGD", **task.sgd),
        scheduler=DDict(name="StepLR", step_size=1, gamma=1),
        persistency=False,  # a fresh optimizer in every round
    )
    settings = DDict(model=task.model, client=client, server=DDict(weighted=True))
    algorithm = FedAVG(len(task.clients), Split(task), settings)
    algorithm.set_callbacks([Timed(clock)])
    algorithm.run(task.rounds, eligible_perc=1.0)
    clock.finish(task.loss(algorithm.server.model))


if __name__ == "__main__":
    main()
