"""A run's folder: its config, whether the run is finished, and whether a process works in it.

Imports nothing slow, as the command line uses it before the job begins.
"""

from __future__ import annotations

import json
import math
import os
import secrets
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from fedexp.errors import InputError

if TYPE_CHECKING:
    from fedexp.config.schema import Config

FILE_NAME = "run.json"
CHECKPOINTS = "checkpoints"
SUMMARY = "summary.json"
METRICS = "metrics.jsonl"
AUTO = "auto"

RECORDS = ("tracking", "checkpoint", "limits", "resume")
"""Keys of what is recorded and saved, and of when a run ends."""

COSTS = ("engine", "clients.ram_gib", "data.cache")
"""Keys of how fast a run is and where it keeps its data; results change by rounding at most."""


@dataclass(frozen=True)
class Identity:
    """The content of ``run.json``.

    Attributes:
        config: the checked config of the last launch; what may not change is the first one's.
        wandb_id: the run's id in W&B, the same for all launches.
        known: whether an earlier launch wrote it.
    """

    config: Mapping[str, Any]
    wandb_id: str
    known: bool = True


def read(folder: Path) -> Identity | None:
    """The folder's ``run.json``; None if it is absent or incomplete."""
    try:
        return _parse((folder / FILE_NAME).read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        return None


def check(folder: Path, config: Config) -> None:
    """Raise InputError unless a run of ``config`` may start, or resume, in ``folder``."""
    found = read(folder)
    if config.resume is None:
        if found or _size(folder / METRICS):
            raise InputError(
                f"hydra.run.dir={folder}: already holds a run; name another folder, or go on "
                f"with it by resume={folder}"
            )
    elif found is None:
        if _size(folder / METRICS):
            raise InputError(f"resume={folder}: has no {FILE_NAME}, without which none goes on")
    elif changed := differences(found.config, config.model_dump(mode="json")):
        raise InputError(
            f"resume={folder}: the config has changed; that run had {', '.join(changed)}"
        )
    elif rounds_finished(folder) > config.rounds:
        raise InputError(f"rounds={config.rounds}: {folder} has {rounds_finished(folder)} already")


@contextmanager
def claim(folder: Path, config: Config) -> Iterator[Identity]:
    """Lock ``folder`` for this process while the block runs; yields its ``run.json``.

    Raises:
        InputError: ``check`` fails, or another process is at work there.
    """
    folder.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(folder / FILE_NAME, os.O_RDWR | os.O_CREAT, 0o666)
    with os.fdopen(descriptor, "rb+", buffering=0) as file:
        if not _lock(file):
            raise InputError(f"{folder}: another process is at work there")
        check(folder, config)
        content = file.read()
        now = config.model_dump(mode="json") | {"resume": None}
        known = _parse(content)
        new = Identity(now, secrets.token_hex(4), known=False)
        found = replace(known, config=now) if known else new
        text = json.dumps({"config": found.config, "wandb_id": found.wandb_id}).encode()
        file.seek(0)
        # Spaces over what was longer, in one call: a process that is killed leaves valid JSON.
        file.write(text.ljust(len(content)))
        yield found


def is_busy(folder: Path) -> bool:
    """Whether a process is at work there."""
    with (folder / FILE_NAME).open("rb") as file:
        return not _lock(file)


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
    """The last value of the headline ``metric``, NaN if no round measured it."""
    final = summary["metrics"].get(metric, {"final": None})["final"]
    return math.nan if final is None else float(final)


def find_unfinished(root: Path, config: Config) -> Path | None:
    """The newest run of this config two levels below ``root`` that has rounds left to do.

    Skips runs that a process is at work on, and finished ones without a checkpoint.
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
    """The file of the final global weights."""
    return folder / CHECKPOINTS / "final.pt"


def has_checkpoint(folder: Path) -> bool:
    """Whether there is a checkpoint, complete or damaged."""
    return any((folder / CHECKPOINTS).glob("round_*"))


def differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """``key=old value`` of the keys in which two configs differ, except those that may change.

    See ``may_change``.
    """
    before, now = flatten(old), flatten(new)
    return [
        f"{key}={before.get(key, '(nothing)')}"
        for key in sorted(before.keys() | now.keys())
        if before.get(key, _ABSENT) != now.get(key, _ABSENT) and not may_change(key)
    ]


_ABSENT = object()


def may_change(key: str) -> bool:
    """Whether a resumed run may have another value: of its length, its records and its costs."""
    return is_below(key, ("rounds", *RECORDS, *COSTS))


def is_below(key: str, groups: Iterable[str]) -> bool:
    """Whether a key such as ``tracking.wandb.mode`` is one of these or below one of them."""
    return any(key == each or key.startswith(f"{each}.") for each in groups)


def override_key(override: str) -> str:
    """The key of an override such as ``+partition.beta=0.1``."""
    return override.lstrip("+~").partition("=")[0]


def flatten(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested keys joined by dots."""
    flat: dict[str, Any] = {}
    for key, value in config.items():
        if isinstance(value, Mapping):
            flat |= flatten(value, f"{prefix}{key}.")
        else:
            flat[prefix + key] = value
    return flat


def _parse(content: bytes) -> Identity | None:
    try:
        return Identity(**json.loads(content))
    except ValueError:  # the process was killed while writing
        return None


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _lock(file: BinaryIO) -> bool:
    """Take a lock that ends with the process, however it ends; False if another process has it."""
    try:
        import fcntl
    except ImportError:  # not a POSIX system
        return True
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # a file system without locks
        return True
    return True
