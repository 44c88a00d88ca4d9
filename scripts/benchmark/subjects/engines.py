"""A round with ``engine=vectorized``, compared with ``engine=serial``, for cohorts and models.

    python scripts/bench.py engines [--repeats 9]

The table shows where ``engine=auto`` should stack clients. Each cell is FedAvg on digits in one
thread, without evaluation. The engines take turns, and a cell has the median CPU seconds of their
rounds. Writes scripts/results/engines.json.
"""

import argparse
import time
from collections.abc import Callable
from statistics import median
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from benchmark.results import write
from benchmark.rounds import configure, fedexp_round
from fedexp.models.shape import forward_flops
from fedexp.runtime.plan import plan

ENGINES = ("serial", "vectorized")
COHORTS = (3, 5, 8, 10, 20, 50)
WIDE = ["model.hidden=[512,256]"]
CELLS = {
    **{f"K = {size}": (size, []) for size in COHORTS},
    "K = 10, iid": (10, ["partition=iid"]),
    "K = 10, wide": (10, WIDE),
    "K = 20, wide": (20, WIDE),
}
"""Name of a cell -> the cohort's size K, and further overrides."""


def measured(size: int, others: list[str], repeats: int) -> dict[str, Any]:
    """The operations of a step, and the CPU seconds of a round with each engine."""
    clients = [f"clients.count={max(20, size)}", f"clients.per_round={size}"]
    overrides = [*clients, *others, "engine.threads=1"]
    planned = plan(configure(overrides))
    batch = planned.config.local.batch_size
    flops = forward_flops(planned.backbone, planned.description.input_shape, batch)
    rounds = {each: fedexp_round([*overrides, f"engine={each}"]) for each in ENGINES}
    seconds: dict[str, list[float]] = {each: [] for each in ENGINES}
    for number in range(1, repeats + 2):
        for name, run in rounds.items():
            seconds[name].append(_cpu_seconds(run, number))
    found = {name: median(values[1:]) for name, values in seconds.items()}  # the first warms up
    return {"mflop": flops / 1e6, **found, "ratio": found["vectorized"] / found["serial"]}


def _cpu_seconds(run: Callable[[int], None], number: int) -> float:
    start = time.process_time()
    run(number)
    return time.process_time() - start


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--repeats", type=int, default=9)


def main(arguments: argparse.Namespace) -> None:
    torch.set_num_threads(1)
    cells = {name: measured(*cell, arguments.repeats) for name, cell in CELLS.items()}
    table = Table("cell", "MFLOP a step", "serial, s", "vectorized, s", "ratio")
    for name, cell in cells.items():
        table.add_row(
            name,
            f"{cell['mflop']:.1f}",
            *(f"{cell[e]:.3f}" for e in ENGINES),
            f"{cell['ratio']:.2f}",
        )
    Console().print(table)
    write("engines", {"repeats": arguments.repeats, "cells": cells})
