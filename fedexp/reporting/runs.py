"""Finds runs in folders and reads their files, finished or not."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import yaml

from fedexp.config.keys import flatten
from fedexp.errors import InputError
from fedexp.state import run_folder
from fedexp.tracking.jsonl import parse_metrics


@dataclass(frozen=True)
class Run:
    """One run, read from its folder.

    Attributes:
        folder: the run's folder.
        config: the whole checked config, nested.
        choices: config group -> option, such as ``{"algorithm": "fedavg"}``.
        overrides: the changes on the command line.
        history: the metrics of every finished round, in order.
        summary: the content of ``summary.json``; None if the run is not finished.
        wandb_id: the run's id in W&B.
        headlines: headline metric -> the better direction, ``higher`` or ``lower``.
    """

    folder: Path
    config: Mapping[str, Any]
    choices: Mapping[str, str | None]
    overrides: tuple[str, ...]
    history: list[dict[str, float]]
    summary: Mapping[str, Any] | None
    wandb_id: str
    headlines: Mapping[str, str]

    @property
    def seed(self) -> int:
        """The seed, by which runs are paired."""
        return int(self.config["seed"])

    @property
    def finished(self) -> bool:
        """Whether all rounds of the config were done."""
        return len(self.history) >= int(self.config["rounds"])

    @cached_property
    def values(self) -> dict[str, Any]:
        """Flat key of the config -> value, and group -> option, which replaces a key's value."""
        return flatten(self.config) | dict(self.choices)


def read_runs(paths: Iterable[Path]) -> tuple[list[Run], list[str]]:
    """Read all runs in or below ``paths``.

    A path is the folder of a run, of a sweep, or a folder above them. The runs below a path are in
    natural order (job 2 before job 10). A run that is found twice is read once.

    Returns:
        The runs, and one line for each problem: a path that does not exist, a path without runs, a
        damaged run.
    """
    runs: list[Run] = []
    problems: list[str] = []
    seen: set[Path] = set()
    for path in paths:
        if not path.is_dir():
            problems.append(f"{path}: {'is not a folder' if path.exists() else 'does not exist'}")
            continue
        folders = run_folders(path)
        if not folders:
            problems.append(f"{path}: no run in it")
        for folder in folders:
            resolved = folder.resolve()
            if resolved in seen:
                continue
            seen.add(resolved)
            try:
                runs.append(read_run(folder))
            except InputError as error:
                problems.append(str(error))
    return runs, problems


def read_run(folder: Path) -> Run:
    """Read the run in ``folder``. Raises InputError, which names the missing or damaged file."""
    if not (folder / run_folder.FILE_NAME).exists():
        raise InputError(f"{folder}: not begun, or no run of fedexp: has no {run_folder.FILE_NAME}")
    try:
        identity = run_folder.read(folder)
    except (TypeError, OSError):  # JSON, but not ours
        identity = None
    if identity is None or not _is_config(identity.config):
        raise InputError(f"{folder}: its {run_folder.FILE_NAME} is damaged or another program's")
    with _naming(folder / run_folder.SUMMARY):
        summary = run_folder.read_summary(folder)
    with _naming(folder / run_folder.METRICS):
        history = _history(folder / run_folder.METRICS)
    with _naming(folder / (".hydra" if summary is None else run_folder.SUMMARY)):
        overrides, choices = _launch(folder, summary)
    if not history:
        raise InputError(f"{folder}: no round was finished")
    given = tuple(overrides)
    return Run(
        folder,
        identity.config,
        choices,
        given,
        history,
        summary,
        identity.wandb_id,
        identity.headlines,
    )


def run_folders(path: Path) -> list[Path]:
    """The folders in or below ``path`` that hold a run or were made for one, in natural order."""
    found: list[Path] = []
    seen: set[str] = set()
    for here, folders, files in os.walk(path, followlinks=True):
        resolved = os.path.realpath(here)
        is_run = run_folder.FILE_NAME in files
        is_run = is_run or (Path(here) / ".hydra" / "overrides.yaml").exists()
        if is_run or resolved in seen:
            folders.clear()  # no run within a run, and no end of links in a circle
        if resolved not in seen and (is_run or {run_folder.METRICS, run_folder.SUMMARY} & {*files}):
            found.append(Path(here))
        seen.add(resolved)
    return sorted(found, key=lambda folder: _natural(folder, path))


@contextmanager
def _naming(path: Path) -> Iterator[None]:
    """Raise an error in the block as InputError, which names the file."""
    try:
        yield
    except (ValueError, KeyError, TypeError, AttributeError, OSError, yaml.YAMLError) as error:
        problem = str(error).partition("\n")[0]
        raise InputError(f"{path.parent}: {path.name} cannot be read: {problem}") from None


def _history(path: Path) -> list[dict[str, float]]:
    """The metrics of every complete line. Raises ValueError if a value is not a number."""
    lines = path.read_bytes() if path.exists() else b""
    history = parse_metrics(lines[: lines.rfind(b"\n") + 1])
    for number, row in enumerate(history, start=1):
        for name, value in row.items():
            if not isinstance(value, int | float):
                raise ValueError(f"round {number}: {name} is no number")
    return history


def _natural(folder: Path, root: Path) -> list[tuple[int, str]]:
    """A key that sorts 2 before 10."""
    return [(len(part), part) for part in folder.relative_to(root).parts]


def _is_config(config: object) -> bool:
    """Whether it is a config with the keys that a report needs."""
    if not isinstance(config, Mapping):
        return False
    numbers = (config.get("seed"), config.get("rounds"))
    return all(isinstance(each, int) for each in numbers) and isinstance(
        config.get("measure"), Mapping
    )


def _launch(folder: Path, summary: Mapping[str, Any] | None) -> tuple[list[str], dict[str, Any]]:
    """The overrides and choices of a run; an unfinished run has them in Hydra's files only."""
    if summary is not None:
        return list(summary["overrides"]), dict(summary["choices"])
    hydra = folder / ".hydra"
    overrides = _yaml(hydra / "overrides.yaml") or []
    node = _yaml(hydra / "hydra.yaml") or {}
    choices = node.get("hydra", {}).get("runtime", {}).get("choices", {})
    own = {group: option for group, option in choices.items() if not group.startswith("hydra/")}
    return [str(each) for each in overrides], own


def _yaml(path: Path) -> Any:
    """The content of a YAML file; None if there is none."""
    if not path.exists():
        return None
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    return yaml.load(path.read_text(encoding="utf-8"), Loader=loader)
