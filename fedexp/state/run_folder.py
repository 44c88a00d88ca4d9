"""A run's folder: its config, whether the run is finished, and whether a process is using it.

The command line uses this module before the job begins, so it imports nothing slow.
"""

from __future__ import annotations

import json
import math
import os
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from fedexp.config.keys import differences
from fedexp.errors import InputError
from fedexp.state.abandoned import try_lock

if TYPE_CHECKING:
    from fedexp.config.schema import Config

FILE_NAME = "run.json"
CHECKPOINTS = "checkpoints"
SUMMARY = "summary.json"
METRICS = "metrics.jsonl"
AUTO = "auto"


@dataclass(frozen=True)
class Identity:
    """The content of ``run.json``.

    Attributes:
        config: the checked config of the latest launch.
        wandb_id: the run's id in W&B; all launches share it.
        headlines: metric for comparing runs -> ``higher`` or ``lower``, whichever is better.
        known: whether an earlier launch wrote this file.
    """

    config: Mapping[str, Any]
    wandb_id: str
    headlines: Mapping[str, str] = field(default_factory=dict)
    known: bool = True


def read(folder: Path) -> Identity | None:
    """The folder's ``run.json``; None if it is absent or incomplete."""
    try:
        return _parse((folder / FILE_NAME).read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        return None


def check(folder: Path, config: Config) -> None:
    """Raise InputError unless a run of ``config`` may start or resume in ``folder``."""
    found = read(folder)
    if config.resume is None:
        if found or _size(folder / METRICS):
            raise InputError(
                f"hydra.run.dir={folder}: already holds a run; name another folder, or resume "
                f"the run with resume={folder}"
            )
    elif found is None:
        if _size(folder / METRICS):
            raise InputError(f"resume={folder}: has no {FILE_NAME}, so there is no run to resume")
    elif changed := differences(found.config, config.model_dump(mode="json")):
        raise InputError(
            f"resume={folder}: the config has changed; the run had {', '.join(changed)}"
        )
    elif rounds_finished(folder) > config.rounds:
        raise InputError(f"rounds={config.rounds}: {folder} has {rounds_finished(folder)} already")


@contextmanager
def claim(
    folder: Path, config: Config, headlines: Mapping[str, str] = MappingProxyType({})
) -> Iterator[Identity]:
    """Lock ``folder`` for this process while the block runs; yields the folder's ``run.json``.

    Raises:
        InputError: ``check`` fails, or another process is using the folder.
    """
    folder.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(folder / FILE_NAME, os.O_RDWR | os.O_CREAT, 0o666)
    with os.fdopen(descriptor, "rb+", buffering=0) as file:
        if try_lock(file) is False:
            raise InputError(f"{folder}: another process is using this folder")
        check(folder, config)
        content = file.read()
        now = config.model_dump(mode="json") | {"resume": None}
        known = _parse(content)
        new = Identity(now, secrets.token_hex(4), headlines, known=False)
        found = replace(known, config=now, headlines=headlines) if known else new
        kept = {"config": now, "wandb_id": found.wandb_id, "headlines": dict(headlines)}
        text = json.dumps(kept).encode()
        file.seek(0)
        # One write, padded with spaces over a longer old text: a kill still leaves valid JSON.
        file.write(text.ljust(len(content)))
        yield found


def is_busy(folder: Path) -> bool:
    """Whether a process is using the folder."""
    with (folder / FILE_NAME).open("rb") as file:
        return try_lock(file) is False


def rounds_finished(folder: Path) -> int:
    """The number of rounds of a finished run; 0 if it is not finished."""
    summary = read_summary(folder)
    return int(summary["rounds"]) if summary else 0


def read_summary(folder: Path) -> dict[str, Any] | None:
    """The run's ``summary.json``; None if the run is not finished."""
    try:
        summary: dict[str, Any] = json.loads((folder / SUMMARY).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    return summary


def objective(summary: Mapping[str, Any], metric: str) -> float:
    """The last value of the headline ``metric``; NaN if no round measured it."""
    final = summary["metrics"].get(metric, {"final": None})["final"]
    return math.nan if final is None else float(final)


def find_unfinished(root: Path, config: Config) -> Path | None:
    """The newest run of this config with rounds left to train, two levels below ``root``.

    Skips runs in use by another process, and finished runs without a checkpoint.
    """
    values = config.model_dump(mode="json")
    for path in sorted(root.glob(f"*/*/{FILE_NAME}"), reverse=True):
        folder, found = path.parent, read(path.parent)
        if found is None or differences(found.config, values) or is_busy(folder):
            continue
        finished = rounds_finished(folder)
        if not finished or (finished < config.rounds and has_checkpoint(folder)):
            return folder
    return None


def final_weights(folder: Path) -> Path:
    """Path of the final global weights."""
    return folder / CHECKPOINTS / "final.pt"


def has_checkpoint(folder: Path) -> bool:
    """Whether there is a checkpoint, complete or damaged."""
    return any((folder / CHECKPOINTS).glob("round_*"))


def _parse(content: bytes) -> Identity | None:
    try:
        return Identity(**json.loads(content))
    except ValueError:  # the process was killed while writing
        return None


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0
