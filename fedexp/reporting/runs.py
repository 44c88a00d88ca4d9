"""Finds finished and unfinished runs in folders, and reads their files.

The folders may come from strangers. Therefore texts are made printable, links out of the folders
are not followed, and a run with a wrong file is left out.
"""

import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import yaml

from fedexp.config.added_keys import REMOVED_GROUPS
from fedexp.config.keys import flatten
from fedexp.drawing.texts import printable
from fedexp.errors import DAMAGED, InputError
from fedexp.state import run_folder
from fedexp.state.run_folder import Identity
from fedexp.tracking.jsonl import parse_metrics
from fedexp.tracking.statistics import headline_statistics

_DEEPEST = 50
"""Largest number of nested levels in a file; deeper nesting could crash the reader."""
_LARGEST = 2**30
"""Largest number of bytes in a file (1 GiB); a larger file could take all memory."""
_HIGHEST = 2**63
"""Seeds and rounds are below this number."""
_FILES = frozenset([run_folder.FILE_NAME, run_folder.METRICS, run_folder.SUMMARY])
"""A folder with one of these files holds a run."""
UNREADABLE = (*DAMAGED, OSError, yaml.YAMLError)
"""Errors of reading a damaged YAML file."""


@dataclass(frozen=True)
class Run:
    """One run, read from its folder.

    Attributes:
        folder: the run's folder.
        config: the whole checked config, nested.
        choices: config group -> option, such as ``{"algorithm": "fedavg"}``.
        overrides: the overrides on the command line.
        history: the metrics of every finished round, in order.
        summary: the content of ``summary.json``; None if the run is not finished.
        wandb_id: the run's id in W&B.
        headlines: headline metric -> the better direction, ``higher`` or ``lower``.
        directions: any other metric, or a pattern such as ``cost/*`` -> the better direction.
    """

    folder: Path
    config: Mapping[str, Any]
    choices: Mapping[str, str | None]
    overrides: tuple[str, ...]
    history: list[dict[str, float]]
    summary: Mapping[str, Any] | None
    wandb_id: str
    headlines: Mapping[str, str]
    directions: Mapping[str, str]

    @property
    def seed(self) -> int:
        """The seed; runs with the same seed are compared in pairs."""
        return int(self.config["seed"])

    @property
    def place(self) -> str:
        """The folder's path as printable text."""
        return printable(str(self.folder))

    @property
    def progress(self) -> str:
        """The number of finished rounds, and of all rounds, such as ``63 of 400``."""
        return f"{len(self.history)} of {self.config['rounds']}"

    @property
    def targets(self) -> Sequence[float]:
        """The accuracies of ``measure.global.targets``."""
        return _targets(self.config)

    @property
    def wall_time(self) -> float | None:
        """Seconds of the whole run; None if the run is not finished."""
        return None if self.summary is None else self.summary.get("wall_time_s")

    @property
    def warnings(self) -> list[str]:
        """The warnings of ``summary.json`` as printable text; none for an older run."""
        found = (self.summary or {}).get("warnings", [])
        return [printable(str(each)) for each in found] if isinstance(found, list) else []

    @property
    def finished(self) -> bool:
        """Whether all rounds of the config were done."""
        return len(self.history) >= int(self.config["rounds"])

    @cached_property
    def values(self) -> dict[str, Any]:
        """Dotted key of the config -> value, and config group -> option.

        If a key has the name of a group, the option replaces the key's value.
        """
        return flatten(self.config) | dict(self.choices)

    def statistic(self, metric: str, name: str, better: str = "higher") -> float:
        """A statistic of a metric, such as ``final``; NaN if it was not measured."""
        found = headline_statistics(self.history, {metric: better})
        return found.get(metric, {}).get(name, math.nan)


def read_runs(
    paths: Iterable[Path], check: Callable[[Run], object] = lambda run: None
) -> tuple[list[Run], list[str]]:
    """Read all runs in or below ``paths``.

    A path is the folder of a run or of a sweep, or a folder that contains such folders. The runs
    below a path are in natural order (job 2 before job 10). A run that is found twice is read only
    the first time.

    Args:
        paths: the folders.
        check: raises InputError for a run that is to be left out.

    Returns:
        The runs, and one line for each problem: a path that does not exist, a path without runs, a
        link that leads out of a path, a damaged run.
    """
    runs: list[Run] = []
    problems: list[str] = []
    seen: set[Path] = set()
    for path in paths:
        if not os.path.isdir(path):
            why = "is not a folder" if os.path.exists(path) else "does not exist"
            problems.append(f"{path}: {why}")
            continue
        folders, links = run_folders(path)
        problems += [f"{link}: a link out of {path}, not followed" for link in links]
        if not folders:
            problems.append(f"{path}: no run in it")
        for folder in folders:
            resolved = folder.resolve()
            if resolved in seen:
                continue
            seen.add(resolved)
            try:
                run = read_run(folder)
                check(run)
                runs.append(run)
            except InputError as error:
                problems.append(str(error))
    return runs, list(map(printable, problems))


def read_run(folder: Path) -> Run:
    """Read the run in ``folder``. Raises InputError, which names the missing or damaged file."""
    identity_file = folder / run_folder.FILE_NAME
    if not identity_file.exists():
        raise InputError(f"{folder}: not begun, or no run of fedexp: has no {run_folder.FILE_NAME}")
    with _naming(identity_file):
        identity = _identity(folder)
        if identity is not None:
            config = _plain(identity.config)
            headlines, directions = _plain(identity.headlines), _plain(identity.directions)
            _targets(config)
            for name, ways in (("headlines", headlines), ("directions", directions)):
                known = all(isinstance(way, str) for way in ways.values())
                _check(known and {*ways.values()} <= {"higher", "lower"}, name, "higher or lower")
    if identity is None:
        raise InputError(f"{folder}: its {run_folder.FILE_NAME} is damaged or another program's")
    with _naming(folder / run_folder.SUMMARY):
        summary = _plain(run_folder.read_summary(folder))
        if summary is not None:
            _check(_is_number(summary.get("wall_time_s", 0)), "wall_time_s", "a number")
    with _naming(folder / run_folder.METRICS):
        history = _history(folder / run_folder.METRICS)
    with _naming(folder / (".hydra" if summary is None else run_folder.SUMMARY)):
        overrides, choices = _launch(folder, summary)
    if not history:
        raise InputError(f"{folder}: no round was finished")
    told = printable(str(identity.wandb_id)), headlines, directions
    return Run(folder, config, choices, tuple(overrides), history, summary, *told)


def run_folders(path: Path) -> tuple[list[Path], list[Path]]:
    """The folders in or below ``path`` that hold a run or were made for a run, in natural order.

    A folder of ``fedexp-partition`` has a table of the partition and no run; it is left out.

    Returns:
        The folders, and the links that lead out of ``path``, which are not followed.
    """
    found: list[Path] = []
    outside: list[Path] = []
    seen: set[str] = set()
    left = [path]
    while left:
        here = left.pop()
        if not is_within(here, path):
            outside.append(here)
            continue
        resolved = os.path.realpath(here)
        if resolved in seen or not os.access(here, os.R_OK | os.X_OK):
            continue  # already visited through a link, or not readable
        seen.add(resolved)
        names = os.listdir(here)
        is_run = (here / ".hydra" / "overrides.yaml").exists() or _is_ours(here)
        has_files = not _FILES.isdisjoint(names)
        is_preview = run_folder.PARTITION in names and not (has_files or _is_ours(here))
        if has_files or (is_run and not is_preview):
            found.append(here)
        if not is_run:  # a run's folder contains no other run
            left += [here / name for name in names if os.path.isdir(here / name)]
    return sorted(found, key=lambda folder: _natural(folder, path)), sorted(outside)


@contextmanager
def _naming(path: Path) -> Iterator[None]:
    """Check that a file may be read; turn errors of the block into an InputError with its name."""
    if not is_within(path, path.parent):
        raise InputError(f"{path.parent}: {path.name} is a link out of the folder, not followed")
    try:
        _check_file(path)
        yield
    except RecursionError:
        raise InputError(f"{path.parent}: {path.name} is nested too deeply") from None
    except UNREADABLE as error:
        problem = str(error).partition("\n")[0]
        raise InputError(f"{path.parent}: {path.name} cannot be read: {problem}") from None


def _check_file(path: Path) -> None:
    """Raise ValueError if reading this path could wait for ever or take all memory."""
    if not path.exists() or path.is_dir():
        return
    _check(path.is_file(), path.name, "a file, not a pipe or device")
    _check(path.stat().st_size <= _LARGEST, path.name, "smaller than 1 GiB")


def is_within(path: Path, folder: Path) -> bool:
    """Whether the path lies in the folder after all links are followed."""
    return Path(os.path.realpath(path)).is_relative_to(os.path.realpath(folder))


def _identity(folder: Path) -> Identity | None:
    """The content of ``run.json``; None if the file is damaged or not fedexp's."""
    copies = [each / run_folder.IDENTITY for each in run_folder.checkpoint_folders(folder)]
    are_own = all(is_within(each, folder) for each in copies)
    try:
        found = run_folder.read(folder) if are_own else run_folder.read_identity(folder)
    except (TypeError, OSError):  # TypeError: JSON of another program
        return None
    return found if found is not None and _is_config(found.config) else None


def _is_ours(folder: Path) -> bool:
    try:
        return _identity(folder) is not None
    except RecursionError:
        return False


def _plain(value: Any, depth: int = 0) -> Any:
    """A file's content with all texts made printable.

    Raises:
        RecursionError: the content is nested too deeply.
    """
    if depth > _DEEPEST:
        raise RecursionError
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, Mapping):
        return {printable(str(key)): _plain(each, depth + 1) for key, each in value.items()}
    if isinstance(value, list):
        return [_plain(each, depth + 1) for each in value]
    return value


def _check(is_so: bool, key: str, wanted: str) -> None:
    if not is_so:
        raise ValueError(f"{key} should be {wanted}")


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)


def _targets(config: Mapping[str, Any]) -> list[float]:
    """The config's ``measure.global.targets``. Raises ValueError if one is not a number."""
    node = config["measure"].get("global") or {}
    found = node.get("targets") or []
    wanted = isinstance(found, list) and all(map(_is_number, found))
    _check(wanted, f"measure.global.targets={found}", "numbers")
    return list(map(float, found))


def _history(path: Path) -> list[dict[str, float]]:
    """The metrics of every complete line. Raises ValueError if a value is not a number."""
    lines = path.read_bytes() if path.exists() else b""
    history = parse_metrics(lines[: lines.rfind(b"\n") + 1])
    for number, row in enumerate(history, start=1):
        for name, value in row.items():
            if not isinstance(value, int | float):
                raise ValueError(f"round {number}: {name} is no number")
            float(value)  # raises OverflowError if an integer is too large
    names: set[str] = set().union(*history)
    if any(name != printable(name) for name in names):
        return [_plain(row) for row in history]
    return history


def _natural(folder: Path, root: Path) -> list[tuple[int, str]]:
    """A sort key: in each folder shorter names come first, so job 2 comes before job 10."""
    return [(len(part), part) for part in folder.relative_to(root).parts]


def _is_config(config: object) -> bool:
    """Whether ``config`` is a config with the keys that a report needs."""
    if not isinstance(config, Mapping):
        return False
    numbers = (config.get("seed"), config.get("rounds"))
    are_numbers = all(isinstance(each, int) and 0 <= each < _HIGHEST for each in numbers)
    return are_numbers and isinstance(config.get("measure"), Mapping)


def _launch(folder: Path, summary: Mapping[str, Any] | None) -> tuple[list[str], dict[str, Any]]:
    """The overrides and choices of a run. For an unfinished run, they are only in Hydra's files."""
    if summary is not None:
        overrides, choices = summary["overrides"], summary["choices"]
    else:
        overrides = list(map(str, read_yaml(folder / ".hydra" / "overrides.yaml") or []))
        node = read_yaml(folder / ".hydra" / "hydra.yaml") or {}
        every = node.get("hydra", {}).get("runtime", {}).get("choices", {})
        choices = {name: option for name, option in every.items() if not name.startswith("hydra/")}
    are_texts = isinstance(overrides, list) and all(isinstance(each, str) for each in overrides)
    _check(are_texts, "overrides", "a list of texts")
    options = choices.values() if isinstance(choices, dict) else [choices]
    _check(all(isinstance(each, str | int | float | None) for each in options), "choices", "names")
    return overrides, {k: each for k, each in choices.items() if k not in REMOVED_GROUPS}


def read_yaml(path: Path) -> Any:
    """The content of a YAML file; None if the file does not exist. Raises ``UNREADABLE``."""
    if not path.exists():
        return None
    _check(is_within(path, path.parent), path.name, "a file of the folder, not a link")
    _check_file(path)
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    text = path.read_text(encoding="utf-8")
    aliases = (isinstance(each, yaml.AliasEvent) for each in yaml.parse(text, Loader=loader))
    _check(not any(aliases), path.name, "without aliases")  # aliases could expand to a huge value
    return _plain(yaml.load(text, Loader=loader))
