"""A run's folder: its config, whether the run is finished, and whether a process is using it.

The command line uses this module before the job begins, so it imports nothing slow.
"""

from __future__ import annotations

import errno
import json
import logging
import math
import os
import re
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from fedexp.config.added_keys import with_added
from fedexp.config.keys import differences
from fedexp.config.moved_modules import with_moved
from fedexp.errors import InputError, readable
from fedexp.state.atomic import sync, write_durably
from fedexp.state.folder_lock import is_busy, locked

if TYPE_CHECKING:
    from fedexp.config.schema import Config

LOGGER = logging.getLogger(__name__)

FILE_NAME = "run.json"
IDENTITY = "identity.json"
"""Name of the copy of ``run.json`` in a checkpoint.

The name differs from ``run.json``, so that a checkpoint's folder is not taken for a run's folder.
"""
DATA = "data.json"
"""File with the facts about the data that the trained model needs."""
PARTITION = "partition.csv"
CLIENT_NAME = "client_name"
"""Second column of ``partition.csv`` if the clients are users of the dataset, who have names."""
CHECKPOINTS = "checkpoints"
FINAL = "final"
"""Name of the global model after the last round."""
SUMMARY = "summary.json"
METRICS = "metrics.jsonl"
AUTO = "auto"
_ROUND = re.compile(r"round_\d{4,}")
_LARGEST = 2**26
"""Largest size of fedexp's JSON files in bytes (64 MiB)."""


@dataclass(frozen=True)
class Identity:
    """The content of ``run.json``.

    Attributes:
        config: the checked config of the run's latest start.
        wandb_id: the run's id in W&B; a resumed run keeps it.
        headlines: headline -> ``higher`` or ``lower``, whichever is better.
        directions: name or pattern of other metrics -> ``higher`` or ``lower``.
        known: whether the file is from an earlier start of the run.
    """

    config: Mapping[str, Any]
    wandb_id: str
    headlines: Mapping[str, str] = field(default_factory=dict)
    directions: Mapping[str, str] = field(default_factory=dict)
    known: bool = True

    @property
    def content(self) -> bytes:
        """The content of ``run.json`` for this identity."""
        values = {name: value for name, value in vars(self).items() if name != "known"}
        return json.dumps(values).encode()


def read(folder: Path) -> Identity | None:
    """Read the identity from the folder's ``run.json``, or else from a copy in a checkpoint.

    Returns None if neither is a valid file of fedexp. Raises OSError if a file cannot be read.
    """
    if found := read_identity(folder):
        return found
    copies = (read_small_file(each / IDENTITY) for each in checkpoint_folders(folder))
    return next(filter(None, map(parse_identity, copies)), None)


def read_identity(folder: Path) -> Identity | None:
    """Read the identity from the folder's own file alone, not from a copy in a checkpoint."""
    return parse_identity(read_small_file(folder / FILE_NAME))


def check(folder: Path, config: Config) -> Identity | None:
    """Raise InputError unless a run of ``config`` may start or resume in ``folder``.

    The commands call this before they write anything into the folder. ``claim`` calls it under the
    folder's lock, because another process may have begun a run there since.

    Returns the identity of the run that is there, if any.
    """
    with readable(folder / FILE_NAME):
        found, foreign = read(folder), _is_foreign(folder / FILE_NAME)
    if foreign:
        raise InputError(
            f"{folder / FILE_NAME}: is no file of fedexp; name another folder, or move it away"
        )
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
    elif (done := rounds_done(folder)) > config.rounds:
        raise InputError(f"rounds={config.rounds}: {folder} has {done} rounds already")
    return found


@contextmanager
def claim(
    folder: Path,
    config: Config,
    headlines: Mapping[str, str] = MappingProxyType({}),
    directions: Mapping[str, str] = MappingProxyType({}),
    wandb_id: str | None = None,
) -> Iterator[Identity]:
    """Lock ``folder`` while the block runs, and yield the run's identity, which is not written yet.

    A new run has the id ``wandb_id``, or a random one; a resumed run keeps its id.

    Raises:
        InputError: ``check`` fails, or another process is using the folder.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with locked(folder):
        known = check(folder, config)
        now = config.model_dump(mode="json") | {"resume": None}
        new_id = wandb_id or secrets.token_hex(4)
        found = Identity(now, new_id, dict(headlines), dict(directions), known=False)
        if known:
            found = replace(found, wandb_id=known.wandb_id, known=True)
        yield found


def write_identity(folder: Path, identity: Identity) -> None:
    """Write ``run.json``; on return the file and its folders are on disk."""
    write_durably(folder / FILE_NAME, identity.content)
    for parent in folder.resolve().parents[:3]:  # new folders, such as outputs/DATE
        with suppress(OSError):
            sync(parent)


def rounds_done(folder: Path) -> int:
    """The rounds of a finished run, or those up to the newest checkpoint, if it has more."""
    return max(rounds_finished(folder), newest_checkpoint(folder))


def rounds_finished(folder: Path) -> int:
    """The number of rounds of a finished run; 0 if the run is not finished."""
    summary = finished_summary(folder)
    return int(summary["rounds"]) if summary else 0


def finished_summary(folder: Path) -> dict[str, Any] | None:
    """The summary of a finished run; None if the run is not finished, or its summary is damaged.

    A summary is valid only if ``metrics.jsonl`` has the same number of rounds. Raises InputError if
    one of the files cannot be read.
    """
    if not (folder / SUMMARY).exists():
        return None
    try:
        summary = read_summary(folder) or {}
        lines = _content(folder / METRICS).count(b"\n")
        finals = [each["final"] for each in summary["metrics"].values()]
        if summary["rounds"] == lines and all(map(_is_number, finals)):
            return summary
    except OSError as error:
        raise InputError(f"{folder}: its {SUMMARY} cannot be read ({error.strerror})") from error
    except (ValueError, KeyError, TypeError, AttributeError):
        pass
    LOGGER.warning("%s is damaged: the run counts as not finished", folder / SUMMARY)
    return None


def read_summary(folder: Path) -> dict[str, Any] | None:
    """The run's ``summary.json``; None if it is absent.

    Raises ValueError if the file is no JSON, and OSError if it cannot be read.
    """
    path = folder / SUMMARY
    summary: dict[str, Any] | None = json.loads(read_small_file(path)) if path.exists() else None
    return summary


def read_small_file(path: Path) -> bytes:
    """The content of a file; empty if there is no such file. Raises OSError if it is too large."""
    if _size(path) > _LARGEST:
        raise OSError(errno.EFBIG, os.strerror(errno.EFBIG), str(path))
    return _content(path)


def objective(summary: Mapping[str, Any], metric: str, statistic: str = "final") -> float:
    """A statistic of the headline ``metric``, by default its last value; NaN if there is none."""
    found = summary["metrics"].get(metric, {}).get(statistic)
    return math.nan if found is None else float(found)


def find_unfinished(root: Path, config: Config) -> Path | None:
    """Find the newest run of this config with rounds left; None if there is none.

    The runs' folders are two levels below ``root``. Runs that another process uses are skipped, and
    so are finished runs without a checkpoint and runs with more rounds than ``rounds``. A
    ``run.json`` that cannot be read or is not fedexp's is skipped with a warning.
    """
    values = config.model_dump(mode="json")
    for path in sorted(root.glob(f"*/*/{FILE_NAME}"), reverse=True):
        try:
            found = None if _is_foreign(path) else read(path.parent)
            if found is None:
                LOGGER.warning("%s: is damaged or no file of fedexp; skipped", path)
            elif not differences(found.config, values) and not is_busy(path.parent):
                finished, saved = rounds_finished(path.parent), newest_checkpoint(path.parent)
                has_rounds_left = not finished or (saved and finished < config.rounds)
                if has_rounds_left and saved <= config.rounds:
                    return path.parent
        except (OSError, InputError) as error:
            LOGGER.warning("%s: cannot be read (%s); skipped", path, error)
    return None


def saved_weights(folder: Path, name: str) -> Path:
    """Path of the file with a global model's weights.

    Args:
        folder: the run's folder.
        name: ``FINAL``, or the name of the measure that chose the model.
    """
    return folder / CHECKPOINTS / f"{name}.pt"


def model_files(folder: Path) -> list[Path]:
    """The files of the global models that the run has saved, in the order of their names."""
    return sorted((folder / CHECKPOINTS).glob("*.pt"))


def newest_checkpoint(folder: Path) -> int:
    """The round of the newest checkpoint, complete or damaged; 0 if there is none."""
    return max(map(_round_of, checkpoint_folders(folder)), default=0)


def checkpoint_folders(folder: Path) -> list[Path]:
    """The folders of the run's checkpoints, the newest first; other names are ignored."""
    found = [p for p in (folder / CHECKPOINTS).glob("round_*") if _ROUND.fullmatch(p.name)]
    return sorted(found, key=_round_of, reverse=True)


def parse_identity(content: bytes) -> Identity | None:
    """Parse the content of ``run.json``; None if the content is not a valid identity."""
    try:
        values = json.loads(content)
        ways = [values.get(name, {}) for name in ("headlines", "directions")]
        found = Identity(values["config"], values["wandb_id"], *ways)
    except (ValueError, KeyError, TypeError, AttributeError):
        return None
    mappings = (found.config, found.headlines, found.directions)
    of_right_types = all(isinstance(each, dict) for each in mappings)
    if not of_right_types or not isinstance(found.wandb_id, str):
        return None
    return replace(found, config=with_added(with_moved(found.config)))


def _round_of(checkpoint: Path) -> int:
    return int(checkpoint.name.removeprefix("round_"))


def _is_number(value: object) -> bool:
    """Whether a summary may hold this value of a metric."""
    return value is None or isinstance(value, int | float)


def _is_foreign(path: Path) -> bool:
    """Whether ``path`` is from another program: a folder, or JSON that fedexp never writes."""
    if path.exists() and not path.is_file():
        return True
    content = read_small_file(path)
    try:
        json.loads(content)
    except ValueError:  # absent or damaged
        return False
    return parse_identity(content) is None


def _content(path: Path) -> bytes:
    """The content of the file; empty if the path is no regular file, for example a pipe."""
    if not path.is_file():
        return b""
    try:
        return path.read_bytes()
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
        return b""


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0
