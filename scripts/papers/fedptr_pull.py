"""FedPTR's pull compared with the gradient of the cross-entropy, round by round.

    PYTHONPATH=scripts python scripts/papers/fedptr_pull.py --rounds 10 OVERRIDES ...

FedAvg is trained. Before each round every client with data takes one epoch of SGD steps from the
global model, with the config's learning rate, momentum and clipping but without augmentation and
weight decay. The norm of the cross-entropy's gradient is recorded at each step. FedPTR adds a pull
whose norm, lam sqrt(number of layers), is the same at any distance. Where the pull is longer than
the cross-entropy's gradient, the pull determines the direction of the steps. The paper does not say
what a layer is, so the table has a column for each value of regularizer.layers: the number of
clients whose gradient at the last step is shorter than the pull. OVERRIDES are overrides of fedexp;
algorithm=fedavg is set.
"""

import argparse
import math
from collections.abc import Sequence
from typing import NamedTuple, get_args

import torch
import torch.nn.functional as F
from benchmark.rounds import configure, prepare
from rich.console import Console
from rich.table import Table

from fedexp.config.schema import Config
from fedexp.core.client import ClientModule
from fedexp.core.randomness import torch_generator
from fedexp.regularizers.layers import Grouping, layers_of
from fedexp.runtime.federation import Federation


class Norms(NamedTuple):
    """A client's number of classes, and the norm of its cross-entropy's gradient at each step."""

    classes: int
    by_step: list[float]


def pulls(overrides: Sequence[str], federation: Federation) -> dict[Grouping, float]:
    """Reading of a layer -> norm of the pull on the whole model: every layer is pulled by lam."""
    lam = float(configure([*overrides, "algorithm=fedptr_s"]).regularizer["lam"])
    shapes = {name: value.shape for name, value in federation.module.tensor_index.parameters()}
    return {
        grouping: lam * math.sqrt(len(set(layers_of(shapes, grouping).values())))
        for grouping in get_args(Grouping)
    }


def gradient_norms(federation: Federation, config: Config, round: int) -> list[Norms]:
    """The norms at every client with data, in one epoch from the global model of this round."""
    resources = federation.engine.resources
    message = federation.server.broadcast(round)
    found = []
    for client in federation.data.clients:
        if client.num_samples:
            module = resources.load_global(message).train()
            draw = torch_generator(config.seed, "fedptr_pull", round, client.client)
            batches = client.train_index[torch.randperm(client.num_samples, generator=draw)]
            steps = [
                federation.data.train.gather(b) for b in batches.split(config.local.batch_size)
            ]
            found.append(
                Norms(int((client.class_counts > 0).sum()), one_epoch(module, steps, config))
            )
    return found


def one_epoch(
    module: ClientModule, batches: Sequence[tuple[torch.Tensor, torch.Tensor]], config: Config
) -> list[float]:
    """Norm of the gradient, before clipping, at each step of clipped SGD on the cross-entropy."""
    parameters = [value for _, value in module.tensor_index.parameters()]
    optimizer = torch.optim.SGD(
        parameters, config.optimizer.node["lr"], config.optimizer.node["momentum"]
    )
    norms = []
    for inputs, labels in batches:
        optimizer.zero_grad()
        F.cross_entropy(module(inputs), labels).backward()
        limit = config.local.grad_clip or math.inf
        norms.append(torch.nn.utils.clip_grad_norm_(parameters, limit).item())
        optimizer.step()
    return norms


def median(values: Sequence[float]) -> float:
    return torch.tensor(values).median().item()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("overrides", nargs="+")
    arguments = parser.parse_args()
    config, federation = configure(arguments.overrides), prepare(arguments.overrides)
    lengths = pulls(arguments.overrides, federation)
    columns = ["round", "clients", "of one class", "first step", "last step"]
    columns += [f"below {length:.3f}" for length in lengths.values()]
    readings = ", ".join(f"{length:.3f} ({name})" for name, length in lengths.items())
    table = Table(*columns, title=f"gradient of the cross-entropy; the pull is {readings}")
    for round in range(1, arguments.rounds + 1):
        found = gradient_norms(federation, config, round)
        last = [each.by_step[-1] for each in found]
        table.add_row(
            str(round),
            str(len(found)),
            str(sum(each.classes == 1 for each in found)),
            f"{median([each.by_step[0] for each in found]):.2f}",
            f"{median(last):.2f}",
            *(str(sum(norm < length for norm in last)) for length in lengths.values()),
        )
        federation.run_round(round)
    Console().print(table)


if __name__ == "__main__":
    main()
