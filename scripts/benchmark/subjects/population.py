"""The cost of a million clients: set-up, memory, rounds, figures, a checkpoint and its resume.

    python scripts/bench.py population [--clients 1000 1000000] [--json population.json]

The data are Synthetic(1, 1), with at most 1,000 samples per client. A logistic model is trained,
with 100 clients a round and one local epoch. Each method and population runs in its own process.
Set-up is everything from the config to the first round: data, parts, partition.csv and the picture
of the partition. HiCS-FL is measured after two rounds of warm-up, when it clusters all clients in
each round. A second federation resumes from a checkpoint and repeats the last round; its weights
are compared with those of the first. CPU seconds depend less on other load than seconds do.
"""

import argparse
import json
import logging
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from benchmark.process import in_own_process, machine, peak_mib
from benchmark.rounds import prepare
from fedexp.data.partition_table import write_partition
from fedexp.drawing.data_figure import pixels
from fedexp.measures.partition import partition_picture
from fedexp.runtime.federation import Federation
from fedexp.state.checkpoints import Checkpoints
from fedexp.state.run_folder import METRICS, PARTITION

COHORT = 100
WARM_UP = 2
METHODS: dict[str, list[str]] = {
    "fedavg": [],
    "hics": ["sampler=hics", f"sampler.warm_up_rounds={WARM_UP}"],
    "scaffold": ["regularizer=control_variates", "optimizer.momentum=0"],
}
SHARED = [
    *("algorithm=fedavg", "data=synthetic", "data.size_max=1000", "model=logistic"),
    *("engine=vectorized", "engine.device=cpu", "local.epochs=1", "local.batch_size=32"),
    *(f"clients.per_round={COHORT}", "measure.personal=null", "optimizer.lr=0.01"),
]


class Clock:
    """Seconds and CPU seconds of named spans of time; several spans may have the same name."""

    def __init__(self) -> None:
        self.spans: dict[str, list[tuple[float, float]]] = {}

    @contextmanager
    def span(self, name: str) -> Iterator[None]:
        start, busy = time.perf_counter(), time.process_time()
        yield
        took = time.perf_counter() - start, time.process_time() - busy
        self.spans.setdefault(name, []).append(took)
        print(name, *(f"{each:.2f}" for each in took), file=sys.stderr)

    def medians(self) -> dict[str, dict[str, float]]:
        found = {}
        for name, spans in self.spans.items():
            seconds, busy = (statistics.median(each) for each in zip(*spans, strict=True))
            found[name] = {"seconds": round(seconds, 3), "cpu_seconds": round(busy, 3)}
        return found


def federate(method: str, clients: int, rounds: int, folder: Path) -> Federation:
    overrides = [*SHARED, *METHODS[method], f"clients.count={clients}", f"rounds={rounds}"]
    federation = prepare(overrides, always=(), folder=folder / "clients")
    write_partition(folder / PARTITION, federation.data)
    return federation


def measure(method: str, clients: int, rounds: int) -> dict[str, Any]:
    """Times and sizes of this process, which must do nothing else."""
    logging.disable(logging.WARNING)
    clock, imported = Clock(), peak_mib()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with clock.span("set-up"):
            federation = federate(method, clients, rounds, folder)
            pixels(partition_picture(federation.data))
        for number in range(1, rounds):
            warm = method == "hics" and number <= WARM_UP
            with clock.span("warm-up round" if warm else "round"):
                federation.run_round(number)
        (folder / METRICS).touch()
        checkpoints, store = Checkpoints(folder, keep=1), federation.store
        with clock.span("checkpoint"):
            checkpoints.save(
                rounds - 1,
                0.0,
                federation.server,
                federation.measures,
                federation.coordination,
                store.states(),
            )
        size = sum(path.stat().st_size for path in folder.glob("checkpoints/*/**/*.*"))
        with clock.span("last round with its figures"):
            record = federation.run_round(rounds)
            for figure in record.figures.values():
                pixels(figure)
        final = federation.server.weights
        highest = peak_mib()
        del federation
        with clock.span("resume"):
            again = federate(method, clients, rounds, folder)
            saved = checkpoints.latest()
            assert saved is not None
            again.restore(saved)
        again.run_round(rounds)
        same = all(torch.equal(final[n], again.server.weights[n]) for n in final)
    return {
        "method": method,
        "clients": clients,
        "peak_mib": round(highest),
        "of_it_imports_mib": round(imported),
        "checkpoint_mib": round(size / 2**20, 1),
        "resumed_to_the_bit": same,
        **clock.medians(),
    }


def ratios(rows: list[dict[str, Any]]) -> dict[str, float]:
    """CPU seconds of a round in the largest population, divided by those in the smallest."""
    found = {}
    for method in METHODS:
        own = [row["round"]["cpu_seconds"] for row in rows if row["method"] == method]
        found[method] = round(own[-1] / own[0], 2)
    return found


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--clients", type=int, nargs="+", default=[1000, 1_000_000])
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--json", type=Path, help="also write the numbers here")


def main(arguments: argparse.Namespace) -> None:
    jobs = [(method, clients) for method in METHODS for clients in sorted(arguments.clients)]
    rows = [in_own_process(measure, *job, arguments.rounds) for job in jobs]
    table = Table(
        "method", "clients", "peak MiB", *(f"{each}, CPU s" for each in ("set-up", "round"))
    )
    for row in rows:
        times = [str(row[name]["cpu_seconds"]) for name in ("set-up", "round")]
        table.add_row(str(row["method"]), f"{row['clients']:,}", str(row["peak_mib"]), *times)
    console = Console()
    console.print(table)
    about = {
        "command": f"python scripts/bench.py population --rounds {arguments.rounds} --json "
        "scripts/results/population.json",
        "clients_per_round": COHORT,
        "rounds": arguments.rounds,
        "load": round(os.getloadavg()[1], 1),
        **machine(),
    }
    result = {"setting": about, "round_cpu_ratio": ratios(rows), "results": rows}
    console.print(result["round_cpu_ratio"])
    if arguments.json:
        arguments.json.write_text(json.dumps(result, indent=2) + "\n")
