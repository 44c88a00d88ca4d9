"""Seconds of a run for each ``engine.threads``, alone and while a program uses all cores.

    python scripts/bench.py threads [--images DIR] [--repeats 3]

Each run is a process of the command: six rounds of the default experiment, and with DIR, a folder
of CIFAR-10 as images, also two rounds of conv2cifar. The settings take turns. Of each setting, the
least seconds of local training in a run count. The other program multiplies matrices with as many
threads as there are cores. A ratio is the seconds divided by those of one thread alone. Writes
scripts/results/threads.json.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from benchmark.results import add_images, write

QUIET = [
    "measure.personal=null",
    "measure.global.every=100",
    "measure.prototypes.every=100",
    "tracking.progress=false",
    "tracking.wandb.mode=disabled",
    "checkpoint.keep=0",
]
JOBS = {"digits, MLP": ["rounds=6"]}
IMAGES = [
    "rounds=2",
    "data=image_folder",
    "data.subset=2000",
    "model=conv2cifar",
    "clients.per_round=5",
    "local.epochs=1",
]
BUSY = "import torch\na = torch.rand(1500, 1500)\nwhile True: a @ a"


@contextmanager
def busy(cores: int) -> Iterator[None]:
    """While the block runs, run another program with ``cores`` threads; 0: no program."""
    if not cores:
        yield
        return
    environment = os.environ | {"OMP_NUM_THREADS": str(cores)}
    other = subprocess.Popen([sys.executable, "-c", BUSY], env=environment)
    try:
        yield
    finally:
        other.kill()
        other.wait()


def run_once(overrides: list[str], threads: str) -> tuple[float, int]:
    """Seconds of local training of one run, and the threads that it used."""
    environment = {k: v for k, v in os.environ.items() if k != "OMP_NUM_THREADS"}
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "fedexp.train", *QUIET, *overrides]
        command += [f"engine.threads={threads}", f"hydra.run.dir={folder}/run"]
        subprocess.run(command, env=environment, check=True, capture_output=True)
        run = Path(folder) / "run"
        rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
        summary = json.loads((run / "summary.json").read_text())
    seconds = sum(row.get("time/train_s", 0.0) for row in rows)
    return seconds, summary["threads"]


def measure(overrides: list[str], cores: int, repeats: int) -> list[dict[str, Any]]:
    """A row for each setting of the threads, alone and beside the other program."""
    rows: list[dict[str, Any]] = [
        {"threads": threads, "beside": beside, "seconds": [], "used": []}
        for beside in (False, True)
        for threads in ("1", str(cores), "auto")
    ]
    for _ in range(repeats):
        for row in rows:
            with busy(cores if row["beside"] else 0):
                seconds, used = run_once(overrides, row["threads"])
            row["seconds"].append(seconds)
            row["used"].append(used)
    for row in rows:
        row["ratio"] = min(row["seconds"]) / min(rows[0]["seconds"])
    return rows


def add_options(parser: argparse.ArgumentParser) -> None:
    add_images(parser)
    parser.add_argument("--repeats", type=int, default=3)


def main(arguments: argparse.Namespace) -> None:
    jobs = dict(JOBS)
    if arguments.images:
        jobs["CIFAR-10, conv2cifar"] = [*IMAGES, f"data.root={arguments.images}"]
    cores, console, found = len(os.sched_getaffinity(0)), Console(), {}
    for name, overrides in jobs.items():
        rows = found[name] = measure(overrides, cores, arguments.repeats)
        table = Table("engine.threads", "used", "alone", "beside another program", title=name)
        for alone, beside in zip(rows[:3], rows[3:], strict=True):
            used = ", ".join(map(str, sorted({*alone["used"], *beside["used"]})))
            ratios = (f"{row['ratio']:.2f}" for row in (alone, beside))
            table.add_row(alone["threads"], used, *ratios)
        console.print(table)
    versions = {"torch": torch.__version__, "cores": cores}
    write("threads", {"versions": versions, "jobs": found})
