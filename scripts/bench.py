"""What a round costs with each engine, over a raw PyTorch loop; and how cost grows.

    python scripts/bench.py [--images DIR] [--repeats 9] [--only jobs|growth] [--profile CONTENDER]

All do the same work in one go, in turns, evaluation off, each in a process or processes of its own,
which else wait: seconds are medians, ratios are to the median of the raw loop (contiguous images,
two threads). DIR is a folder of CIFAR-10 as images
(train/<class>/*, test/<class>/*), by default the environment variable FEDEXP_CIFAR10_IMAGES;
without it only the digits job runs. Writes scripts/results/bench_<cpu or cuda>.json.
"""

import argparse
import cProfile
import json
import os
import platform
import pstats
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from multiprocessing.connection import Client, Connection, Listener
from pathlib import Path
from threading import Thread
from typing import Any

import hydra
import torch
import torch.nn.functional as F
from omegaconf import OmegaConf
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

from fedexp.cli.command import config_folder
from fedexp.config.schema import Config, validate
from fedexp.data.federated import FederatedData
from fedexp.distributed.processes import make_fabric, spawn
from fedexp.federation import Federation
from fedexp.runtime.assembly import assemble
from fedexp.runtime.plan import load_data, plan
from fedexp.tracking.tracker import Trackers

RESULTS = Path(__file__).parent / "results"
CUDA = torch.cuda.is_available()
NEVER = 10**6
ALWAYS = [
    "algorithm=fedavg",
    "evaluation.personal=off",
    f"evaluation.every={NEVER}",
    f"tracking.heatmap_every={NEVER}",
    f"rounds={NEVER}",
]
CIFAR10 = ["data=image_folder", "partition=iid", "clients.count=100", "clients.per_round=10"]
JOBS = {
    "digits, MLP, 100 clients": [
        *["partition=iid", "clients.count=100", "clients.per_round=100", "local.batch_size=16"],
    ],
    "CIFAR-10, conv2cifar, 10 clients": [
        *[*CIFAR10, "model=conv2cifar", "local.batch_size=64", "local.epochs=1"],
    ],
}
if CUDA:
    JOBS["CIFAR-10, resnet18 with GroupNorm, 10 clients"] = [
        *[*CIFAR10, "model=resnet18", "model.norm=group", "local.batch_size=64", "local.epochs=1"],
    ]


@dataclass(frozen=True)
class Contender:
    """One way to do the same work: ``processes`` of ``threads`` each with these ``overrides``."""

    name: str
    overrides: tuple[str, ...] = ()
    processes: int = 1
    threads: int = 2


RAW = "+raw=true"
PLAIN, LAYOUT = ("engine.channels_last=false",), ("engine.channels_last=true",)
SIXTEEN = (*LAYOUT, "engine.precision=bf16-mixed")
STACKED = (*PLAIN, "engine=vectorized")
CONTENDERS = [
    Contender("raw loop", (*PLAIN, RAW)),
    Contender("serial", PLAIN),
    Contender("serial, channels_last", LAYOUT),
    Contender("serial, bf16-mixed", SIXTEEN),
    Contender("serial, compiled", (*LAYOUT, "engine.compile=true")),
    Contender("vectorized", STACKED),
    Contender("trainer", (*LAYOUT, "engine=trainer")),
]
if CUDA:
    CONTENDERS += [
        Contender("vectorized, bf16-mixed", (*STACKED, "engine.precision=bf16-mixed")),
        Contender("vectorized, compiled", (*STACKED, "engine.compile=true")),
    ]
else:
    CONTENDERS += [
        Contender("serial, 2 processes", LAYOUT, processes=2, threads=1),
        Contender("vectorized, 2 processes", STACKED, processes=2, threads=1),
    ]
TARGETS = {
    ("CIFAR-10, conv2cifar, 10 clients", "serial, channels_last"): 0.85,
    ("CIFAR-10, conv2cifar, 10 clients", "serial, 2 processes"): 0.75,
    ("digits, MLP, 100 clients", "vectorized"): 0.25,
}
Run = Callable[[int], None]
"""Does round number r."""


def configure(overrides: list[str]) -> Config:
    with hydra.initialize_config_dir(config_folder(), version_base="1.3"):
        cfg = hydra.compose("config", [*ALWAYS, *overrides])
    return validate(OmegaConf.to_container(cfg, resolve=True))


def prepare(overrides: list[str]) -> Federation:
    config = configure(overrides)
    planned, fabric = plan(config), make_fabric(config.engine)
    data = load_data(config, planned.source, fabric.device)
    return assemble(planned, fabric, data, Trackers([]))


def one_round(federation: Federation) -> Run:
    def run(round: int) -> None:
        federation.run_round(round)

    return run


def raw_round(overrides: list[str]) -> Run:
    """The same round as a researcher would write it by hand for one experiment."""
    own = [each for each in overrides if each != RAW]
    config, federation = configure(own), prepare(own)
    planned = plan(config)
    data: FederatedData = federation.engine.resources.data
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


def serve(address: str, overrides: list[str], threads: int) -> None:
    """One of a contender's processes: does the rounds that it is asked for."""
    torch.set_num_threads(threads)
    run = raw_round(overrides) if RAW in overrides else one_round(prepare(overrides))
    connection: Connection = Client(address)
    while (round := connection.recv()) is not None:
        run(round)
        if CUDA:
            torch.cuda.synchronize()
        connection.send(None)


@contextmanager
def elsewhere(contender: Contender, job: list[str]) -> Iterator[Run]:
    """Rounds in processes of the contender's own, which wait while others have their turn."""
    processes, threads = contender.processes, contender.threads
    overrides = [*job, *contender.overrides, f"engine.devices={processes}"]
    with Listener() as listener:
        work = (serve, processes, listener.address, overrides, threads)
        thread = Thread(target=spawn, args=work)
        thread.start()
        connections = [listener.accept() for _ in range(processes)]

        def run(round: int) -> None:
            for connection in connections:
                connection.send(round)
            for connection in connections:
                connection.recv()

        yield run
        for connection in connections:
            connection.send(None)
        thread.join()


def measure(job: list[str], contenders: list[Contender], repeats: int) -> list[list[float]]:
    """Seconds of a round of each contender, ``repeats`` times after a warm-up.

    The order changes from turn to turn, so that what slows the machine down hits all alike. A turn
    is two rounds, the second of which counts: as in a run, one has just gone before.
    """
    with ExitStack() as stack:
        runs = [stack.enter_context(elsewhere(each, job)) for each in contenders]
        seconds: list[list[float]] = [[] for _ in runs]
        for round in range(1, 2 * repeats + 3, 2):
            turns = list(zip(runs, seconds, strict=True))
            for run, times in turns if round % 4 == 1 else reversed(turns):
                run(round)
                times.append(timed(partial(run, round + 1)))
    return [times[1:] for times in seconds]


def timed(work: Callable[[], None]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def compare(jobs: dict[str, list[str]], repeats: int, console: Console) -> list[dict[str, Any]]:
    """Print one table, ratios first; returns its rows."""
    rows = []
    for job, overrides in jobs.items():
        console.print(f"{job} ...")
        seconds = [statistics.median(each) for each in measure(overrides, CONTENDERS, repeats)]
        for contender, mine in zip(CONTENDERS, seconds, strict=True):
            row = {"job": job, **asdict(contender), "ratio": mine / seconds[0], "seconds": mine}
            rows.append(row | {"target": TARGETS.get((job, contender.name))})
    table = Table("time / raw loop", "target", "seconds", "job", "")
    for row in rows:
        target = row["target"]
        cells = f"{row['ratio']:.2f}", f"{target}" if target else "", f"{row['seconds']:.3f}"
        table.add_row(*cells, row["job"], row["name"])
    console.print(table)
    return rows


def grow(console: Console) -> list[dict[str, Any]]:
    """How the time of a round and the memory grow with the population, and with the cohort."""
    rows = []
    table = Table("population", "cohort", "engine", "seconds a round", "peak MiB")
    sizes = [10, 100, 1000, 10000]
    pairs = [(count, 10) for count in sizes] + [(sizes[-1], cohort) for cohort in sizes[1:]]
    for engine in ("serial", "vectorized"):
        for count, cohort in pairs:
            command = [sys.executable, __file__, "--size", engine, str(count), str(cohort)]
            done = subprocess.run(command, check=True, capture_output=True, text=True)
            seconds, mebibytes = map(float, done.stdout.splitlines()[-1].split())
            table.add_row(str(count), str(cohort), engine, f"{seconds:.4f}", f"{mebibytes:.0f}")
            row = {"population": count, "cohort": cohort, "engine": engine}
            rows.append(row | {"seconds": seconds, "peak_mib": mebibytes})
    console.print(table)
    return rows


def of_size(engine: str, count: str, cohort: str) -> None:
    """Seconds of a round and peak MiB of a process with one tiny federation."""
    clients = [f"clients.count={count}", f"clients.per_round={cohort}", f"engine={engine}"]
    # 18,000 points, so that each of 10,000 clients has one or two and takes one step.
    tiny = ["data=spiral", "partition=iid", "model.hidden=[16]", "model.feature_dim=8"]
    federation = prepare([*tiny, *clients, "local.epochs=1", "local.batch_size=2000"])
    seconds = [timed(partial(one_round(federation), round)) for round in range(1, 8)]
    print(statistics.median(seconds[2:]), peak_mib())


def peak_mib() -> float:
    """The most that this process held; what ``resource`` tells includes the one that forked it."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM"))


def profile(jobs: dict[str, list[str]], name: str, console: Console) -> None:
    """Print where one contender's round goes."""
    contender = next(each for each in CONTENDERS if each.name == name)
    for job, overrides in jobs.items():
        run = one_round(prepare([*overrides, *contender.overrides]))
        run(1)
        profiler = cProfile.Profile()
        profiler.runcall(run, 2)
        console.print(f"[bold]{job}[/]: {name}")
        pstats.Stats(profiler).strip_dirs().sort_stats("tottime").print_stats(25)


def machine() -> dict[str, Any]:
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    names = [line.partition(": ")[2] for line in lines if line.startswith("model name")]
    return {
        "device": torch.cuda.get_device_name() if CUDA else names[0] if names else "CPU",
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "torch": torch.__version__,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--images", default=os.environ.get("FEDEXP_CIFAR10_IMAGES"))
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--only", choices=["jobs", "growth"])
    parser.add_argument("--profile", choices=[each.name for each in CONTENDERS[1:]])
    parser.add_argument("--size", nargs=3, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.size:
        of_size(*arguments.size)
        return
    console = Console()
    jobs = {
        name: [*overrides, f"data.root={arguments.images}"] if "CIFAR" in name else overrides
        for name, overrides in JOBS.items()
        if arguments.images or "CIFAR" not in name
    }
    if arguments.profile:
        profile(jobs, arguments.profile, console)
        return
    path = RESULTS / f"bench_{'cuda' if CUDA else 'cpu'}.json"
    found = json.loads(path.read_text()) if path.exists() else {}
    found["machine"] = machine()
    if arguments.only != "growth":
        found["jobs"] = compare(jobs, arguments.repeats, console)
    if arguments.only != "jobs":
        found["growth"] = grow(console)
    console.print(found["machine"])
    path.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
