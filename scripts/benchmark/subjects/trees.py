"""How much slower a round of this tree is than a round of another tree, for each engine.

    git worktree add ../before COMMIT
    python scripts/bench.py trees ../before [--repeats 5]

Each run is a process of the command: 60 rounds of the default experiment, with quick measures only.
The runs of the two trees alternate. The seconds of a run are the median over its rounds; a round is
selecting, training and aggregating. Other programs only add time, so a tree's fastest run counts.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median

from benchmark.results import SCRIPTS
from benchmark.subjects.threads import QUIET

ENGINES = ("serial", "vectorized")
TIMES = ("time/select_s", "time/train_s", "time/server_s")


def seconds_of_a_round(tree: Path, engine: str) -> float:
    """The median seconds of a round in one run of ``tree``."""
    environment = {**os.environ, "PYTHONPATH": str(tree), "OMP_NUM_THREADS": "1"}
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "fedexp", *QUIET, "rounds=60", f"engine={engine}"]
        command += [f"hydra.run.dir={folder}/run"]
        subprocess.run(command, cwd=tree, env=environment, check=True, capture_output=True)
        lines = Path(folder, "run", "metrics.jsonl").read_text().splitlines()
    return median(sum(json.loads(line).get(name, 0.0) for name in TIMES) for line in lines)


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("other", type=Path)
    parser.add_argument("--repeats", type=int, default=5)


def main(arguments: argparse.Namespace) -> None:
    trees = [SCRIPTS.parent, arguments.other.resolve()]
    for engine in ENGINES:
        seconds: list[list[float]] = [[], []]
        for turn in range(arguments.repeats):
            for which in (0, 1) if turn % 2 else (1, 0):
                seconds[which].append(seconds_of_a_round(trees[which], engine))
        here, other = map(min, seconds)
        print(f"{engine}: {here / other:.3f} ({here:.4f} s, other tree {other:.4f} s)", flush=True)
