"""One round of a job: by fedexp, and by a loop as a researcher would write it by hand."""

import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmark.jobs import RAW
from fedexp.cli.compose import composed
from fedexp.config.schema import Config, validate
from fedexp.data.federated import FederatedData
from fedexp.data.load import load_data
from fedexp.distributed.fabric import make_fabric
from fedexp.runtime.federation import Federation
from fedexp.runtime.plan import plan

NEVER = 10**6
ALWAYS = [
    "algorithm=fedavg",
    "measure.personal=null",
    f"measure.global.every={NEVER}",
    f"measure.prototypes.every={NEVER}",
    f"rounds={NEVER}",
]
Run = Callable[[int], None]
"""Does round number r."""


def configure(overrides: Sequence[str], always: Sequence[str] = ALWAYS) -> Config:
    return validate(composed([*always, *overrides]).config)


def prepare(
    overrides: Sequence[str], always: Sequence[str] = ALWAYS, folder: Path | None = None
) -> Federation:
    """A federation without trackers.

    Args:
        overrides: as typed on the command line.
        always: overrides that come before; by default endless FedAvg without evaluation.
        folder: the folder for clients' tensors that do not fit into ``clients.ram_gib``.
    """
    config = configure(overrides, always)
    planned, fabric = plan(config), make_fabric(config.engine)
    data = load_data(config, planned.source, fabric.device)
    return Federation(planned, fabric, data, folder=folder)


def fedexp_round(overrides: list[str]) -> Run:
    """Make the function that does one round with fedexp, without evaluation."""
    federation = prepare(overrides)

    def run(round: int) -> None:
        federation.run_round(round)

    return run


def raw_round(overrides: list[str]) -> Run:
    """Make the function that does the same round in plain PyTorch: FedAvg with SGD."""
    own = [each for each in overrides if each != RAW]
    config, federation = configure(own), prepare(own)
    planned = plan(config)
    data: FederatedData = federation.data
    model = nn.Sequential(
        planned.backbone(input_shape=planned.description.input_shape),
        nn.Linear(planned.feature_dim, planned.description.num_classes),
    ).to(data.train.inputs.device)
    images, labels = data.train.inputs, data.train.labels
    indices = [client.train_index for client in data.clients]
    mean, std = -data.train.shift / (255 * data.train.scale), 1 / (255 * data.train.scale)
    global_weights = [p.detach().clone() for p in model.parameters()]
    optimizer = config.optimizer.node

    def batch(index: Tensor) -> Tensor:
        inputs = images[index]
        return (inputs.float() / 255 - mean) / std if inputs.dtype == torch.uint8 else inputs

    def run(round: int) -> None:
        cohort = federation.sampler.select(round)
        total = sum(len(indices[client]) for client in cohort)
        sums = [torch.zeros_like(w) for w in global_weights]
        for client in cohort:
            index = indices[client]
            with torch.no_grad():
                for p, w in zip(model.parameters(), global_weights, strict=True):
                    p.copy_(w)
            sgd = torch.optim.SGD(
                model.parameters(),
                lr=optimizer["lr"],
                momentum=optimizer["momentum"],
                weight_decay=optimizer["weight_decay"],
            )
            assert isinstance(config.local.epochs, int)
            for _ in range(config.local.epochs):
                shuffled = index[torch.randperm(len(index), device=index.device)]
                for chunk in shuffled.split(config.local.batch_size):
                    sgd.zero_grad()
                    loss = F.cross_entropy(model(batch(chunk)), labels[chunk])
                    loss.backward()
                    sgd.step()
            with torch.no_grad():
                for s, p in zip(sums, model.parameters(), strict=True):
                    s.add_(p, alpha=len(index) / total)
        global_weights[:] = sums

    return run


def seconds_of(run: Run, round: int) -> float:
    start = time.perf_counter()
    run(round)
    return time.perf_counter() - start
