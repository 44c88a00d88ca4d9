"""A run's folder: what it is a run of, whether it is finished, and who is at work in it.

Imports nothing slow: it is asked before the job itself begins.
"""

from __future__ import annotations

import json
import math
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
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

_FREE = ("rounds", "tracking", "engine", "checkpoint", "resume", "clients.ram_gib", "data.cache")
"""Keys that may change between a kill and a resume: how far, how fast and where, never what."""


@dataclass(frozen=True)
class Identity:
    """What ``run.json`` says.

    Attributes:
        config: the checked config of the run's first launch.
        wandb_id: the run's id in W&B, for all its launches.
        known: whether somebody was here before.
    """

    config: Mapping[str, Any]
    wandb_id: str
    known: bool = True


def read(folder: Path) -> Identity | None:
    """Whose folder it is; None if nobody's, or if its owner was killed before it could say."""
    try:
        return _parse((folder / FILE_NAME).read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        return None


def check(folder: Path, config: Config) -> None:
    """Whether a run of ``config`` may begin, or go on, in ``folder``. Raises InputError if not."""
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
    """Make ``folder`` this process's own as long as the block runs; also says whose it was.

    Raises:
        InputError: ``check`` says no, or another process is at work there.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / FILE_NAME).open("ab+") as file:
        if not _lock(file):
            raise InputError(f"{folder}: another process is at work there")
        check(folder, config)
        file.seek(0)
        found = _parse(file.read())
        if found is None:
            found = Identity(config.model_dump(mode="json"), secrets.token_hex(4), known=False)
            file.truncate(0)
            file.write(json.dumps({"config": found.config, "wandb_id": found.wandb_id}).encode())
            file.flush()
        yield found


def is_busy(folder: Path) -> bool:
    """Whether a process is at work there."""
    with (folder / FILE_NAME).open("rb") as file:
        return not _lock(file)


def rounds_finished(folder: Path) -> int:
    """How many rounds the run has if it came to its end, else 0."""
    summary = read_summary(folder)
    return int(summary["rounds"]) if summary else 0


def read_summary(folder: Path) -> dict[str, Any] | None:
    """The run's ``summary.json``; None as long as it is not finished."""
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

    One that a process is at work on is passed over, and so is one that came to its end without
    leaving a checkpoint.
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


def has_checkpoint(folder: Path) -> bool:
    """Whether there is one, be it damaged or not."""
    return any((folder / CHECKPOINTS).glob("round_*"))


def differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """``key=old value`` of the keys in which two configs differ, but for those that may change."""
    before, now = _flatten(old), _flatten(new)
    return [
        f"{key}={before.get(key, '(nothing)')}"
        for key in sorted(before.keys() | now.keys())
        if before.get(key, _ABSENT) != now.get(key, _ABSENT) and not _is_free(key)
    ]


_ABSENT = object()


def _is_free(key: str) -> bool:
    return any(key == free or key.startswith(f"{free}.") for free in _FREE)


def _flatten(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested keys joined by dots."""
    flat: dict[str, Any] = {}
    for key, value in config.items():
        if isinstance(value, Mapping):
            flat |= _flatten(value, f"{prefix}{key}.")
        else:
            flat[prefix + key] = value
    return flat


def _parse(content: bytes) -> Identity | None:
    try:
        return Identity(**json.loads(content))
    except ValueError:  # its writer was killed
        return None


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _lock(file: BinaryIO) -> bool:
    """Take the lock that ends with the process, however it ends; False if another has it."""
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
