"""Which folder a launch works in: a new one, or with ``resume`` that of an earlier launch."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, MissingMandatoryValue, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from fedexp.cli.give_way import give_way
from fedexp.distributed import launcher
from fedexp.errors import InputError
from fedexp.state import run_folder

_SWEEP = "multirun.yaml"
_MAY_CHANGE = re.compile(r"\+*(rounds|resume|tracking|engine|checkpoint)[.=]")


def register_resolvers() -> None:
    """What ``hydra.run.dir`` and ``hydra.sweep.dir`` in ``config.yaml`` are made of."""
    OmegaConf.register_new_resolver("run_folder", choose_run_folder, replace=True)
    # Cached, so that all jobs of a sweep have the folder that the first look found.
    OmegaConf.register_new_resolver(
        "sweep_folder", choose_sweep_folder, use_cache=True, replace=True
    )


def choose_run_folder(root: str, new: str, *, _root_: DictConfig) -> str:
    """The folder of a run; of several processes, the first one's counts.

    Args:
        root: where runs lie, two levels deep.
        new: below it, the folder of a run that begins.
    """
    try:
        resume = OmegaConf.select(_root_, "resume")
    except OmegaConfBaseException:  # the job will say why
        resume = None
    if resume not in (None, run_folder.AUTO):
        return str(Path(str(resume)).expanduser())
    found = None
    looks = resume is not None and launcher.start().rank == 0
    if looks and (config := _checked(_root_)) is not None:
        found = run_folder.find_unfinished(Path(root), config)
    return str(found or Path(root, new))


def choose_sweep_folder(root: str, new: str, resume: str | None, overrides: Sequence[str]) -> str:
    """The folder of a sweep: with ``resume=auto`` that of the newest with these overrides."""
    if resume not in (None, run_folder.AUTO):
        return str(Path(resume).expanduser())
    if resume is not None:
        wanted = _what_counts(overrides)
        for path in sorted(Path(root).glob(f"*/*/{_SWEEP}"), reverse=True):
            if _what_counts(OmegaConf.load(path).hydra.overrides.task) == wanted:
                return str(path.parent)
    return str(Path(root, new))


def check_run_folder(config: DictConfig) -> None:
    """Make the run's folder, or end with one line if it belongs to another run.

    Args:
        config: the whole config, Hydra's own part included.
    """
    if launcher.start().rank > 0:  # it will work in the first one's
        return
    folder, checked = Path(config.hydra.run.dir), _checked(config)
    try:
        if checked is not None:  # else the job will say why
            check_run(folder, checked)
        make_folder("hydra.run.dir", folder)
    except InputError as error:
        _stop(str(error))


def check_sweep_folder(config: DictConfig) -> None:
    """Make the sweep's folder, or end with one line if it belongs to another sweep."""
    found = launcher.start()
    if found.size > 1:
        _stop(f"{found.by} starts one run; start a sweep without it, with engine.devices=...")
    folder, resume = Path(config.hydra.sweep.dir), OmegaConf.select(config, "resume")
    exists = (folder / _SWEEP).exists()
    if exists and resume is None:
        _stop(
            f"hydra.sweep.dir={folder}: already holds a sweep; name another folder, or go on "
            f"with it by resume={folder}"
        )
    try:
        make_folder("hydra.sweep.dir", folder)
    except InputError as error:
        _stop(str(error))
    if resume is None:
        return
    if exists:
        _say(f"going on with the sweep in {folder}")
    elif resume == run_folder.AUTO:
        _say(f"resume=auto: no earlier sweep like this one; a new one begins in {folder}")
    else:
        _stop(f"resume={resume}: no sweep is there")


def check_run(folder: Path, config: Any) -> None:
    """Whether a launch with ``config`` may work in ``folder``. Raises InputError if not."""
    if config.resume not in (None, run_folder.AUTO) and run_folder.read(folder) is None:
        raise InputError(f"resume={folder}: no run is there")
    run_folder.check(folder, config)


def make_folder(key: str, folder: Path) -> Path:
    """The folder, made if absent. Raises InputError, which names ``key``, if it cannot be."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{key}={folder}: cannot be made ({error.strerror})") from error
    return folder


def plain(cfg: DictConfig, overrides: Sequence[str]) -> dict[str, Any]:
    """The config as nested dictionaries, with what gives way to ``overrides`` left out.

    Raises InputError if a value cannot be resolved.
    """
    try:
        values: Any = OmegaConf.to_container(cfg, resolve=True, throw_on_missing=True)
    except MissingMandatoryValue as missing:
        raise InputError(f"{missing.full_key}: must be given") from None
    except OmegaConfBaseException as error:  # a ${...} that leads nowhere
        raise InputError(f"{error.full_key}: {str(error).splitlines()[0]}") from error
    return give_way({str(key): value for key, value in values.items()}, overrides)


def _checked(cfg: DictConfig) -> Any:
    """The checked config without Hydra's own part; None if something is wrong with it."""
    from fedexp.config.schema import validate  # not needed for --help

    try:
        own = [str(key) for key in cfg if key != "hydra"]
        overrides = OmegaConf.select(cfg, "hydra.overrides.task") or []
        return validate(plain(OmegaConf.masked_copy(cfg, own), overrides))
    except InputError:
        return None


def _what_counts(overrides: Sequence[str]) -> list[str]:
    """The overrides that say what a sweep is, in order: the jobs' numbers depend on it."""
    return [each for each in overrides if not _MAY_CHANGE.match(each)]


def _say(line: str) -> None:
    print(f"fedexp: {line}", file=sys.stderr)


def _stop(line: str) -> None:
    _say(line)
    raise SystemExit(1)
