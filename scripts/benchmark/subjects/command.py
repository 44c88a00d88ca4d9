"""CPU seconds of the default experiment, from start to end, compared with another tree.

    git worktree add ../before COMMIT
    python scripts/bench.py command ../before [--repeats 4]

The trees take turns. A run is one thread, with all files and figures. Prints the seconds of each
pair of runs, and the median of their ratios.
"""

import argparse
import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median

from benchmark.results import SCRIPTS


def cpu_seconds(tree: Path) -> float:
    """CPU seconds of ``fedexp`` without arguments, with the code of this tree."""
    environment = {**os.environ, "PYTHONPATH": str(tree), "OMP_NUM_THREADS": "1"}
    before = _used()
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "fedexp", f"hydra.run.dir={folder}/run"]
        subprocess.run(command, cwd=tree, env=environment, check=True, capture_output=True)
    return _used() - before


def _used() -> float:
    """CPU seconds of the ended processes that this one has started."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("other", type=Path)
    parser.add_argument("--repeats", type=int, default=4)


def main(arguments: argparse.Namespace) -> None:
    ratios = []
    for _ in range(arguments.repeats):
        other, here = map(cpu_seconds, (arguments.other.resolve(), SCRIPTS.parent))
        ratios.append(here / other)
        print(f"{here:.2f} s, other tree {other:.2f} s", flush=True)
    print(f"median of the ratios: {median(ratios):.2f}")
