"""``summary.json``: a run's results, and hashes that show whether two runs are the same."""

import hashlib
import json
import platform
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from fedexp.config.keys import RECORDS
from fedexp.core.messages import Tensors
from fedexp.state.atomic import write_durably
from fedexp.state.run_folder import DATA, METRICS, PARTITION
from fedexp.state.run_folder import SUMMARY as FILE_NAME
from fedexp.tracking.environment import package_version
from fedexp.tracking.jsonl import as_bytes
from fedexp.tracking.origin import FILE_NAME as ORIGIN
from fedexp.tracking.statistics import best_round, headline_statistics, rounds_to

MEMORY = ("cost/client_memory_bytes", "cost/stored_parameters", "cost/server_memory_bytes")
"""Metrics of memory; for each of them, a summary has the largest value over the rounds."""

RECORDED = (METRICS, PARTITION, DATA, ORIGIN)
"""The files of a run whose digests the summary has."""

_BYTES = ("cost/download_bytes", "cost/upload_bytes")
_PACKAGES = ("fedexp", "torch", "lightning", "hydra-core", "numpy")


def summarize(
    history: Sequence[Mapping[str, float]],
    headlines: Mapping[str, str],
    targets: Sequence[float],
    config: Mapping[str, Any],
    overrides: Sequence[str],
    choices: Mapping[str, str | None],
    weights: Tensors,
    device: str,
    threads: int,
    engine: str,
    wall_time_s: float,
    warnings: Sequence[str] = (),
) -> dict[str, Any]:
    """The content of ``summary.json``.

    Args:
        history: the metrics of every round, in order.
        headlines: headline -> ``higher`` or ``lower``: which values are better.
        targets: accuracies, for ``rounds_to``.
        config: the config of the run as a nested dict.
        overrides: the overrides on the command line.
        choices: config group -> chosen option.
        weights: the final global weights.
        device: the device of local training, such as ``cpu``.
        threads: PyTorch's number of threads in each process.
        engine: the engine of local training, such as ``vectorized``.
        wall_time_s: seconds from the start of the run to its end.
        warnings: a line for each reason to doubt the results.
    """
    best = best_round(history)
    chosen = {} if best is None else {"best_round": best}
    return {
        "metrics": headline_statistics(history, headlines) | rounds_to(targets, history),
        "total": {name: int(sum(values)) for name, values in _measured(_BYTES, history)},
        "peak": {name: max(values) for name, values in _measured(MEMORY, history)},
        "rounds": len(history),
        **chosen,
        "seed": config["seed"],
        "overrides": list(overrides),
        "choices": dict(choices),
        "config_hash": config_hash(config),
        "weights_digest": digest(weights),
        "versions": _versions(),
        "device": device,
        "threads": threads,
        "engine": engine,
        "wall_time_s": wall_time_s,
        "warnings": list(warnings),
    }


def config_hash(config: Mapping[str, Any]) -> str:
    """SHA-256 of the config, without the keys in ``RECORDS``, which never change results."""
    relevant = {key: value for key, value in config.items() if key not in RECORDS}
    canonical = json.dumps(relevant, sort_keys=True, separators=(",", ":"), default=str)
    return hashlib.sha256(canonical.encode()).hexdigest()


def digest(weights: Tensors) -> str:
    """SHA-256 of the names, types, shapes and bytes of ``weights``, to compare two runs."""
    sha = hashlib.sha256()
    for name, tensor in sorted(weights.items()):
        sha.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        sha.update(tensor.detach().cpu().flatten().view(torch.uint8).numpy().tobytes())
    return sha.hexdigest()


def file_digests(folder: Path) -> dict[str, str]:
    """Name -> SHA-256 of the content, for each of the files ``RECORDED`` that the run has."""
    paths = (folder / name for name in RECORDED)
    return {p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in paths if p.is_file()}


def write_summary(folder: Path, summary: Mapping[str, Any]) -> None:
    """Write ``folder/summary.json`` completely or not at all; NaN and infinities become null."""
    write_durably(folder / FILE_NAME, as_bytes(summary, indent=2))


def _measured(
    names: Sequence[str], history: Sequence[Mapping[str, float]]
) -> Iterator[tuple[str, list[float]]]:
    """Yield each metric of ``names`` that a round has, with its values in all rounds."""
    for name in names:
        if values := [row[name] for row in history if name in row]:
            yield name, values


def _versions() -> dict[str, str]:
    """The versions; fedexp in a clone without installation is not installed."""
    versions = {name: package_version(name) or "not installed" for name in _PACKAGES}
    return {"python": platform.python_version(), **versions}
