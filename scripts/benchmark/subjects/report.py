"""How long ``fedexp-report`` takes, for several numbers of runs.

    python scripts/bench.py report [--runs 10 50 200]

The command runs the default experiment once. The other runs are copies: four learning rates, five
partitions, and enough seeds for the number of runs; each copy has random accuracies. The command
then writes the report with all default files and figures. A ratio is the seconds divided by those
of importing the command alone. Writes scripts/results/report.json.
"""

import argparse
import itertools
import json
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmark.results import write

LEARNING_RATES = [0.005, 0.01, 0.02, 0.05]
CONCENTRATIONS = [0.05, 0.1, 0.3, 1.0, 10.0]


def first_run(folder: Path, overrides: list[str]) -> None:
    """Train the default experiment in ``folder``."""
    settings = ["tracking.progress=false", "tracking.wandb.mode=disabled", "checkpoint.keep=0"]
    command = [sys.executable, "-m", "fedexp.train", *settings, *overrides]
    subprocess.run([*command, f"hydra.run.dir={folder}"], check=True, capture_output=True)


def copy_run(source: Path, to: Path, number: int) -> None:
    """Copy the run, with another learning rate, partition, seed and other accuracies."""
    shutil.copytree(source, to)
    cells = list(itertools.product(LEARNING_RATES, CONCENTRATIONS))
    lr, beta = cells[number % len(cells)]
    run = json.loads((to / "run.json").read_text())
    run["config"]["optimizer"]["lr"] = lr
    run["config"]["partition"]["beta"] = beta
    run["config"]["seed"] = number // len(cells)
    (to / "run.json").write_text(json.dumps(run))
    rows = [json.loads(line) for line in (to / "metrics.jsonl").read_text().splitlines()]
    for row, accuracy in zip(rows, np.random.default_rng(number).random(len(rows)), strict=True):
        row["global/accuracy"] = accuracy
    (to / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def seconds(*command: str) -> float:
    """How long this command of Python takes."""
    start = time.perf_counter()
    subprocess.run([sys.executable, *command], check=True, capture_output=True)
    return time.perf_counter() - start


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--runs", type=int, nargs="+", default=[10, 50, 200])
    parser.add_argument("overrides", nargs="*", help="of the run that is copied")


def main(arguments: argparse.Namespace) -> None:
    imports = seconds("-c", "import fedexp.cli.report")
    found = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        first_run(folder / "first", arguments.overrides)
        for runs in arguments.runs:
            for number in range(runs):
                copy_run(folder / "first", folder / str(runs) / str(number), number)
            report = ["-m", "fedexp.cli.report", str(folder / str(runs))]
            found[runs] = seconds(*report, "--to", str(folder / f"report of {runs}"))
    table = Table("runs", "seconds", "over imports alone")
    for runs, took in found.items():
        table.add_row(str(runs), f"{took:.1f}", f"{took / imports:.2f}")
    Console().print(table)
    write("report", {"imports": imports, "seconds": found})
