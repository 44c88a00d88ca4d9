"""The job in pfl-research, which takes a client's samples in the same order in every epoch."""

from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from pfl.aggregate.simulate import SimulatedBackend
from pfl.aggregate.weighting import WeightByDatapoints
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam.base import NNEvalHyperParams, NNTrainHyperParams
from pfl.metrics import Metrics
from pfl.model.pytorch import PyTorchModel
from torch import Tensor, nn

from benchmark.peers.task import Clock, Task, load


class Network(nn.Module):
    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, inputs: Tensor) -> Tensor:
        return self.model(inputs)

    def loss(self, inputs: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(self.model(inputs), labels)

    def metrics(self, inputs: Tensor, labels: Tensor) -> dict[str, Any]:
        return {}


class Timed(TrainingProcessCallback):
    def __init__(self, clock: Clock, rounds: int) -> None:
        self.clock, self.rounds = clock, rounds

    def on_train_begin(self, *, model: Any) -> Metrics:
        self.clock.start()
        return Metrics()

    def after_central_iteration(
        self, aggregate_metrics: Metrics, model: Any, *, central_iteration: int
    ) -> tuple[bool, Metrics]:
        self.clock.stop()
        if central_iteration + 1 < self.rounds:
            self.clock.start()
        return False, Metrics()


def run(task: Task, clock: Clock) -> nn.Module:
    clients = range(len(task.clients))
    slices = {client: list(task.data(client)) for client in clients}
    users = get_user_sampler("minimize_reuse", list(clients))
    network = Network(task.model)
    arguments = dict(task.sgd)
    lr = arguments.pop("lr")
    trained = FederatedAveraging().run(
        NNAlgorithmParams(
            central_num_iterations=task.rounds,
            evaluation_frequency=10**6,
            train_cohort_size=len(task.clients),
            val_cohort_size=None,
        ),
        SimulatedBackend(
            training_data=FederatedDataset.from_slices(slices, users),
            val_data=None,
            postprocessors=[WeightByDatapoints()],
        ),
        PyTorchModel(
            network,
            local_optimizer_create=partial(torch.optim.SGD, **arguments),
            central_optimizer=torch.optim.SGD(network.parameters(), lr=1.0),
        ),
        NNTrainHyperParams(
            local_batch_size=task.batch_size,
            local_num_epochs=task.epochs,
            local_learning_rate=lr,
        ),
        NNEvalHyperParams(local_batch_size=None),
        callbacks=[Timed(clock, task.rounds)],
        send_metrics_to_platform=False,
    )
    return trained.pytorch_model


def main() -> None:
    task, clock = load(), Clock("pfl")
    torch.set_num_threads(task.threads)
    clock.finish(task.loss(run(task, clock)))


if __name__ == "__main__":
    main()
