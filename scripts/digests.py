"""Checks whether a change of the code keeps every method's results, to the bit.

    python scripts/digests.py --to before.json      # on the old commit
    python scripts/digests.py --to after.json --against before.json      # on the new one

Trains every preset of a method, the options that no preset chooses, the three engines, two
processes and a resumed run for three rounds on digits. For each run, writes a digest of the final
weights and a digest of all metrics except times. A run that fedexp refuses has the error's line
instead, and is named at the end. ``--against`` prints the runs that differ, are gone or are new,
and exits with 1 if there are any.
"""

import argparse
import hashlib
import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf
from rich.progress import track

import fedexp
from fedexp.cli.command import config_folder
from fedexp.cli.compose import composed
from fedexp.errors import InputError

SMALL = [
    *["clients.count=6", "clients.per_round=3", "local.epochs=1", "data.subset=300"],
    *["measure.prototypes=null", "measure.partition=null", "checkpoint.every=0"],
    *["tracking.wandb.mode=disabled", "tracking.progress=false", "engine.threads=1", "seed=3"],
]
LOOK_AHEAD = ["regularizer.outer_steps=2", "regularizer.inner_steps=2", "regularizer.ipc=2"]
FAST = {
    "algorithm=creff": ["head.match_steps=2"],
    "algorithm=fedgen": ["loss.steps=5"],
    "algorithm=fedprox_synthetic": ["regularizer.outer_steps=2", "regularizer.ipc=2"],
    "algorithm=fedptr": LOOK_AHEAD,
    "algorithm=fedptr_s": LOOK_AHEAD,
}
"""Option -> overrides that shorten its work at the server or at the clients."""

NEEDS = {
    "algorithm=fedap": ["model.batch_norm=true"],
    "algorithm=fedbn": ["model.batch_norm=true"],
    "algorithm=silobn": ["model.batch_norm=true"],
    "algorithm=fedcda": ["aggregator.warmup=1"],  # in the warm-up it is FedAvg
    "head=identity": ["model.feature_dim=10"],
    "sampler=oort": ["system=phones"],
    "aggregator=trimmed_mean": ["clients.per_round=5"],
    "aggregator=krum": ["clients.per_round=5"],
    "aggregator=bulyan": ["clients.count=8", "clients.per_round=7", "aggregator.byzantine=0.15"],
}
"""Option -> overrides without which a small run is refused or is another method."""

GROUPS = ["head", "loss", "regularizer", "gradient", "personalization", "sampler", "aggregator"]
ENGINES = ["serial", "vectorized", "trainer", "two processes", "resumed"]
OF_ALL_ENGINES = ["fedavg", "fednh", "fedgela", "fedsc", "scaffold", "fedrep"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--to", type=Path, required=True)
    parser.add_argument("--against", type=Path)
    arguments = parser.parse_args()
    found = {name: _digests(name, words) for name, words in track(configs().items(), "digests")}
    arguments.to.write_text(json.dumps(found, indent=1) + "\n")
    for name in (each for each in found if "refused" in found[each]):
        print(f"{name} is refused: {found[name]['refused']}")
    if arguments.against:
        sys.exit(_compare(found, json.loads(arguments.against.read_text())))


def words_of(option: str) -> list[str]:
    """The option with the further overrides for a small run."""
    return [option, *FAST.get(option, []), *NEEDS.get(option, [])]


def configs() -> dict[str, list[str]]:
    """Name -> overrides of all runs."""
    found = {name: words_of(name) for name in _options("algorithm")}
    chosen = _chosen_by_presets()
    others = [name for group in GROUPS for name in _options(group) if name not in chosen]
    found |= {name: ["algorithm=fedavg", *words_of(name)] for name in others}
    for algorithm in OF_ALL_ENGINES:
        for engine in ENGINES:
            found[f"{algorithm}, {engine}"] = [f"algorithm={algorithm}", *_engine(engine)]
    return found


def _options(group: str) -> list[str]:
    return [f"{group}={path.stem}" for path in sorted(Path(config_folder(), group).glob("*.yaml"))]


def _chosen_by_presets() -> set[str]:
    """FedAvg's options, and those that another preset has in place of them."""
    entries: list[tuple[Any, Any]] = [*composed(["algorithm=fedavg"]).choices.items()]
    for path in Path(config_folder(), "algorithm").glob("*.yaml"):
        preset: Any = OmegaConf.load(path)
        for each in preset.get("defaults", []):
            entries += each.items() if isinstance(each, DictConfig) else []
    return {f"{group.rpartition('/')[2]}={option}" for group, option in entries}


def _engine(name: str) -> list[str]:
    if name == "two processes":
        return ["engine.devices=2", "engine.device=cpu"]
    return [] if name == "resumed" else [f"engine={name}"]


def _digests(name: str, overrides: Sequence[str]) -> dict[str, str]:
    """The digests of one run, or the error that refuses it."""
    with tempfile.TemporaryDirectory() as folder:
        words = [*SMALL, "rounds=3", *overrides, f"hydra.run.dir={folder}/run"]
        try:  # three rounds, because the first two are the warm-up of HiCS-FL
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
