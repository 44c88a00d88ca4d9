"""The cost of scoring personal models, compared with a plain loop over them.

    python scripts/bench.py evaluation [--images DIR] [--models 100] [--repeats 3] [--only JOB]

The plain loop loads one model after another, normalises every batch of the whole test split, and
computes every metric model by model. A ratio is the seconds divided by the plain loop's seconds in
the same run. The row "forward passes" has forward passes only, on normalised inputs. PyTorch uses
one thread. Seconds are the least CPU seconds of all repeats, since wall-clock time includes other
work on the machine. DIR is a folder of CIFAR-10 as images (train/<class>/*, test/<class>/*), by
default the environment variable FEDEXP_CIFAR10_IMAGES; without DIR only digits are measured. There
are 100 clients. If fewer CIFAR-10 models are measured, the clients whose numbers of scored samples
are closest to the mean are chosen; the column "samples" has this mean. All models are the initial
model with added noise. Writes scripts/results/evaluation.json.
"""

import argparse
import math
import os
import statistics
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from benchmark.results import add_images, read, write
from benchmark.rounds import prepare
from fedexp.measures.after_round import AfterRound
from fedexp.measures.angles import mean_pairwise_angle
from fedexp.measures.personal import Personal
from fedexp.measures.scoring.predictions import score
from fedexp.measures.scoring.scoring import Scoring
from fedexp.runtime.federation import Federation
from fedexp.state.client_state import ClientState
from fedexp.system.exchange import Exchange

CLIENTS = ["algorithm=fedavg", "clients.count=100", "clients.per_round=100"]
HELD = "measure.personal.kinds=[uniform,local,test_split]"
SHARE = "measure.personal.samples=1000"
CIFAR10 = ["data=image_folder", "model=conv2cifar", *CLIENTS]
TWO_CLASSES = ["partition=shards", "partition.classes_per_client=2"]
BF16 = "engine.precision=bf16-mixed"


def dirichlet(beta: float) -> list[str]:
    return ["partition=dirichlet", f"partition.beta={beta}"]


JOBS: dict[str, dict[str, list[str]]] = {
    "CIFAR-10, conv2cifar": {
        "all metrics": [*CIFAR10, *dirichlet(0.3)],
        "uniform, local, test_split; Dirichlet(0.3)": [*CIFAR10, *dirichlet(0.3), HELD],
        "uniform, local, test_split; Dirichlet(0.1)": [*CIFAR10, *dirichlet(0.1), HELD],
        "uniform, local, test_split; two classes a client": [*CIFAR10, *TWO_CLASSES, HELD],
        "all metrics on 1000 samples": [*CIFAR10, *dirichlet(0.3), SHARE],
        "all metrics, bf16-mixed": [*CIFAR10, *dirichlet(0.3), BF16],
    },
    "digits, MLP": {
        "all metrics": [*CLIENTS, *dirichlet(0.3)],
        "uniform, local, test_split; Dirichlet(0.3)": [*CLIENTS, *dirichlet(0.3), HELD],
        "all metrics, vectorized": [*CLIENTS, *dirichlet(0.3), "engine=vectorized"],
    },
}


def with_models(overrides: list[str], count: int, others: Federation | None) -> Federation:
    """A federation with ``count`` personal models, and with the samples of ``others`` if given."""
    federation = prepare(overrides, always=())
    if others:
        data = others.data
        federation.data.train, federation.data.test = data.train, data.test
    draw = torch.Generator().manual_seed(0)
    sizes = torch.tensor(samples_per_client(federation))
    for client in (sizes - sizes.mean()).abs().argsort(stable=True)[:count].tolist():
        model = {
            name: weight + 0.01 * torch.randn(weight.shape, generator=draw)
            for name, weight in federation.module.weights.items()
        }
        federation.store.put(client, ClientState(personal_model=model))
    return federation


def one_after_another(federation: Federation) -> list[dict[str, float]]:
    """Every metric of every model, by a plain loop over the models."""
    resources = federation.engine.resources
    module, test, found = federation.module.eval(), federation.data.test, []
    for number in federation.store.clients_with_model:
        module.load(federation.store.model(number))
        outputs = []
        with torch.inference_mode():
            for index in torch.arange(len(test)).split(resources.eval_batch_size):
                inputs, _ = test.gather(index)
                outputs.append(module.outputs(inputs))
            z, logits = (torch.cat(each) for each in zip(*outputs, strict=True))
            predictions = score(z, logits, test.labels, module.head)
        client = federation.data.clients[number]
        counts, correct = client.class_counts, predictions.correct
        hits = torch.bincount(test.labels[correct], minlength=len(counts))
        totals = torch.bincount(test.labels, minlength=len(counts))
        values = {"whole": correct.double().mean().item()}
        for name, weights in (("uniform", counts > 0), ("local", counts / counts.sum())):
            values[name] = ((weights * hits).sum() / (weights * totals).sum()).item()
        values["test_split"] = correct[client.test_index].double().mean().item()
        for kind, vectors in predictions.class_vectors.items():
            for name, keep in (("existing", counts > 0), ("missing", counts == 0)):
                values[f"{kind}_{name}"] = mean_pairwise_angle(vectors[keep])
        found.append(values)
    return found


def forward_passes(federation: Federation) -> None:
    """The forward passes of every model on the whole test split, and nothing else."""
    module, inputs = federation.module.eval(), list(federation.data.test.batches(1000))
    with torch.inference_mode():
        for number in federation.store.clients_with_model:
            module.load(federation.store.model(number))
            for each, _ in inputs:
                module.outputs(each)


def evaluate(federation: Federation) -> Mapping[str, float]:
    """The results of the measure of personal models."""
    message = federation.server.broadcast(1)
    scoring = Scoring(federation.engine)
    after = AfterRound(
        message, 1, Exchange(message), (), federation.server, federation.ranks, scoring
    )
    return federation.measures["personal"](after).metrics


def samples_per_client(federation: Federation) -> list[float]:
    """Test samples that each client's personal model is scored on."""
    personal, data = federation.measures["personal"], federation.data
    assert isinstance(personal, Personal)
    chosen = [personal.samples(client) for client in data.clients]
    return [float(len(data.test) if each is None else len(each.index)) for each in chosen]


def measure(job: Mapping[str, list[str]], models: int, repeats: int) -> list[dict[str, Any]]:
    """A row for each way to score ``models`` models; each repeat measures every way once."""
    federations: dict[str, Federation] = {}
    first: Federation | None = None
    for name, overrides in job.items():
        federations[name] = with_models(overrides, models, first)
        first = first or federations[name]
    assert first is not None
    plain, everything = first, len(first.data.test)
    ways: dict[str, Callable[[], object]] = {
        "plain loop": lambda: one_after_another(plain),
        "forward passes": lambda: forward_passes(plain),
        **{name: partial(evaluate, each) for name, each in federations.items()},
    }
    seconds = dict.fromkeys(ways, math.inf)
    for _ in range(repeats):
        for name, way in ways.items():
            start = time.process_time()
            way()
            seconds[name] = min(seconds[name], time.process_time() - start)
    return [
        {
            "way": name,
            "ratio": seconds[name] / seconds["plain loop"],
            "cpu_seconds_per_model": seconds[name] / models,
            "samples": statistics.mean(samples_per_client(federations[name]))
            if name in federations
            else everything,
        }
        for name in ways
    ]


def add_options(parser: argparse.ArgumentParser) -> None:
    add_images(parser)
    parser.add_argument("--models", type=int, default=100)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--only", choices=list(JOBS))


def main(arguments: argparse.Namespace) -> None:
    torch.set_num_threads(1)
    console = Console()
    for job, ways in JOBS.items():
        needs_images = "CIFAR" in job
        if (needs_images and not arguments.images) or arguments.only not in (None, job):
            continue
        if needs_images:
            ways = {name: [*each, f"data.root={arguments.images}"] for name, each in ways.items()}
        load = os.getloadavg()[0]
        models = arguments.models if needs_images else 100
        rows = measure(ways, models, arguments.repeats)
        found = read("evaluation")
        found[job] = {
            "models": models,
            "repeats": arguments.repeats,
            "threads": 1,
            "torch": torch.__version__,
            "cores": os.cpu_count(),
            "load_average_before_and_after": [load, os.getloadavg()[0]],
            "rows": rows,
        }
        table = Table("time / plain loop", "ms a model", "samples a model", "", title=job)
        for row in rows:
            milliseconds = f"{1000 * row['cpu_seconds_per_model']:.2f}"
            ratio, samples = f"{row['ratio']:.3f}", f"{row['samples']:.0f}"
            table.add_row(ratio, milliseconds, samples, row["way"])
        console.print(table)
        write("evaluation", found)
