"""Checks whether a change of the code keeps every method's results, to the bit.

    python scripts/digests.py --to before.json      # on the old commit
    python scripts/digests.py --to after.json --against before.json      # on the new one

Trains every preset of a method, the other options of each socket, the three engines, two processes
and a resumed run for a few rounds on digits. For each run, writes a digest of the final weights and
a digest of all metrics except times. ``--against`` prints the runs that differ, are gone or are
new, and exits with 1 if there are any.
"""

import argparse
import hashlib
import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from rich.progress import track

import fedexp
from fedexp.cli.command import config_folder
from fedexp.errors import InputError

SMALL = [
    *["rounds=2", "clients.count=6", "clients.per_round=3", "local.epochs=1", "data.subset=300"],
    *["measure.prototypes=null", "measure.partition=null", "checkpoint.every=0"],
    *["tracking.wandb.mode=disabled", "tracking.progress=false", "engine.threads=1", "seed=3"],
]
FAST = {
    "creff": ["head.match_steps=2"],
    "fedgen": ["loss.steps=5"],
    "fedprox_synthetic": ["regularizer.outer_steps=2", "regularizer.ipc=2"],
    "fedptr": ["regularizer.outer_steps=2", "regularizer.inner_steps=2", "regularizer.ipc=2"],
    "fedptr_s": ["regularizer.outer_steps=2", "regularizer.inner_steps=2", "regularizer.ipc=2"],
}
"""Preset -> overrides that shorten its work at the server or at the clients."""

GROUPS = ["head", "loss", "regularizer", "gradient", "personalization", "sampler", "aggregator"]
ENGINES = ["serial", "vectorized", "trainer", "two processes", "resumed"]
OF_ALL_ENGINES = ["fedavg", "fednh", "fedgela", "fedsc", "scaffold", "fedrep"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--to", type=Path, required=True)
    parser.add_argument("--against", type=Path)
    arguments = parser.parse_args()
    found = {name: _digests(name, words) for name, words in track(_configs().items(), "digests")}
    arguments.to.write_text(json.dumps(found, indent=1) + "\n")
    if arguments.against:
        sys.exit(_compare(found, json.loads(arguments.against.read_text())))


def _configs() -> dict[str, list[str]]:
    """Name -> overrides of all runs."""
    conf = Path(config_folder())
    found = {
        f"algorithm={path.stem}": [f"algorithm={path.stem}", *FAST.get(path.stem, [])]
        for path in sorted((conf / "algorithm").glob("*.yaml"))
    }
    for group in GROUPS:
        for path in sorted((conf / group).glob("*.yaml")):
            found[f"{group}={path.stem}"] = ["algorithm=fedavg", f"{group}={path.stem}"]
    for algorithm in OF_ALL_ENGINES:
        for engine in ENGINES:
            found[f"{algorithm}, {engine}"] = [f"algorithm={algorithm}", *_engine(engine)]
    return found


def _engine(name: str) -> list[str]:
    if name == "two processes":
        return ["engine.devices=2", "engine.device=cpu"]
    return [] if name == "resumed" else [f"engine={name}"]


def _digests(name: str, overrides: Sequence[str]) -> dict[str, str]:
    """The digests of one run, or the error that refuses it."""
    with tempfile.TemporaryDirectory() as folder:
        words = [*SMALL, *overrides, f"hydra.run.dir={folder}/run"]
        try:
            if name.endswith("resumed"):
                fedexp.run([*words, "rounds=1"])
                words.append("resume=auto")
            result = fedexp.run(words)
        except InputError as error:
            return {"refused": str(error)}
    metrics = result.metrics.drop(columns=[c for c in result.metrics if str(c).startswith("time/")])
    numbers = metrics.sort_index(axis=1).to_json(double_precision=15)
    return {
        "weights": result.summary["weights_digest"],
        "metrics": hashlib.sha256(numbers.encode()).hexdigest(),
    }


def _compare(found: dict[str, dict[str, str]], before: dict[str, dict[str, str]]) -> bool:
    """Print the runs that differ from ``before``, are gone or are new; whether there are any."""
    both = found.keys() & before.keys()
    different = sorted(name for name in both if found[name] != before[name])
    for name in different:
        print(f"{name}: {before[name]} is now {found[name]}")
    gone, new = sorted(before.keys() - both), sorted(found.keys() - both)
    print(f"{len(both)} runs compared, {len(different)} differ; gone: {gone}; new: {new}")
    return bool(different or gone)


if __name__ == "__main__":
    main()
