"""Time and memory of choosing a cohort in a large population.

    python scripts/bench.py samplers [--json scripts/results/samplers.json]

Each sampler runs in its own process, with the settings of its YAML file, on random class counts and
signals of 100 classes; it chooses 100 clients a round. Seconds are the median of five rounds
without ``setup``; CPU seconds are shown too, since they depend less on other load. Memory is the
peak of the process; a second column has the memory after importing fedexp. HiCS-FL is measured with
its exact clustering and with the landmarks that it uses above ``sampler.exact_up_to`` clients.
"""

import argparse
import json
import logging
import statistics
import time
from pathlib import Path
from typing import Any

import numpy as np
import scipy
import torch
from omegaconf import OmegaConf
from rich.console import Console
from rich.table import Table

from benchmark.process import in_own_process, machine, peak_mib
from fedexp.cli.command import config_folder
from fedexp.config.build import build
from fedexp.core.part import Clients, Model, Setting
from fedexp.samplers.base import Sampler
from fedexp.samplers.hics import HiCS

CLASSES = 100
COHORT = 100
REPEATS = 5
ROUNDS = 1_000_000  # beyond every warm-up
CHANGES: dict[str, tuple[str, dict[str, int | str]]] = {
    "random": ("random", {}),
    "weighted": ("weighted", {}),
    "hics, exact": ("hics", {"signal": "virtual_bias", "exact_up_to": 10**9}),
    "hics, landmarks": ("hics", {"signal": "virtual_bias", "exact_up_to": 1}),
}
JOBS = [
    ("random", 2_000),
    ("weighted", 2_000),
    ("hics, exact", 2_000),
    ("hics, landmarks", 2_000),
    ("random", 100_000),
    ("weighted", 100_000),
    ("hics, landmarks", 100_000),
]


def prepare(job: str, clients: int) -> Sampler:
    """The job's sampler, set up; HiCS-FL also gets a random signal of every client."""
    name, changes = CHANGES[job]
    node: Any = OmegaConf.load(Path(config_folder()) / "sampler" / f"{name}.yaml")
    sampler: Sampler = build("sampler", {**node, **changes}, Sampler)
    draw = np.random.default_rng(0)
    counts = torch.from_numpy(draw.poisson(1.0, (clients, CLASSES)))
    sampler.setup(Setting(0, ROUNDS, CLASSES, 1, clients, COHORT, Clients.of(counts), Model({})))
    if isinstance(sampler, HiCS):
        shares = draw.dirichlet(np.full(CLASSES, 0.1), clients)
        sampler.signals = torch.from_numpy(0.05 * (shares - 1 / CLASSES)).float()
        sampler.times_chosen += 1
    return sampler


def measure(job: str, clients: int) -> dict[str, str | int | float]:
    """Medians over rounds of this process, which must do nothing else."""
    logging.disable(logging.WARNING)
    imported = peak_mib()
    sampler = prepare(job, clients)
    seconds, busy = [], []
    for number in range(ROUNDS // 2, ROUNDS // 2 + REPEATS):
        start, start_busy = time.perf_counter(), time.process_time()
        cohort = sampler.select(number)
        seconds.append(time.perf_counter() - start)
        busy.append(time.process_time() - start_busy)
        assert len(set(cohort)) == COHORT
    return {
        "sampler": job,
        "clients": clients,
        "seconds": round(statistics.median(seconds), 4),
        "cpu_seconds": round(statistics.median(busy), 4),
        "peak_mib": round(peak_mib()),
        "import_mib": round(imported),
    }


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", type=Path, help="also write the numbers here")


def main(arguments: argparse.Namespace) -> None:
    rows = [in_own_process(measure, job, clients) for job, clients in JOBS]
    table = Table("sampler", "clients", "s a round", "CPU s", "peak MiB", "of it imports")
    for row in rows:
        table.add_row(*map(str, row.values()))
    console = Console()
    console.print(table)
    about = {
        "classes": CLASSES,
        "clients_per_round": COHORT,
        "scipy": scipy.__version__,
    } | machine()
    console.print(about)
    if arguments.json:
        arguments.json.write_text(json.dumps({"setting": about, "results": rows}, indent=2) + "\n")
