"""The entry: compose, validate, build, run.

Only what Hydra needs is imported here at the top, so that ``--help``, ``--cfg job`` and completion
are quick; torch and the rest are imported by the job itself.
"""

from __future__ import annotations

import logging
import math
import os
import secrets
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf, open_dict

from fedexp import cluster, runs
from fedexp.errors import InputError
from fedexp.interrupts import plain_interrupt
from fedexp.mistakes import one_line
from fedexp.resume import check_run, make_folder, plain, register_resolvers
from fedexp.sweep_interrupts import let_in, note_interrupt, was_interrupted

if TYPE_CHECKING:
    from fedexp.execution import RunResult
    from fedexp.schema import Config

LOGGER = logging.getLogger(__name__)

# Two runs started in the same second must not share a folder.
OmegaConf.register_new_resolver(
    "run_id", lambda: secrets.token_hex(2), use_cache=True, replace=True
)
register_resolvers()


def config_folder() -> str:
    """Where the config tree lies: inside the package in a wheel, beside it in a clone."""
    package = Path(__file__).resolve().parent
    candidates = [package / "conf", package.parent / "conf"]
    return str(next(path for path in candidates if (path / "config.yaml").is_file()))


def main() -> None:
    """The ``fedexp`` command."""
    _command(job)


def preview() -> None:
    """The command that draws who would hold what."""
    _command(preview_job)


def _command(job: Callable[[], object]) -> None:
    """Run a command of Hydra's; what it finds wrong with the command line is one line."""
    os.environ["HYDRA_FULL_ERROR"] = "1"  # it hands on what it would else print at length
    try:
        with one_line(sys.argv[1:], Path(config_folder())):
            job()
    except InputError as error:
        raise SystemExit(f"fedexp: {error}") from None


@hydra.main(version_base="1.3", config_path=config_folder(), config_name="config")
def job(cfg: DictConfig) -> float:
    """One job. Returns the objective, for Hydra's optimising sweepers.

    A job of a sweep that fails says so, returns NaN, and leaves the other jobs and the sweep's
    table alone; the sweep then ends with exit code 1.
    """
    hydra_config = HydraConfig.get()
    folder = Path(hydra_config.runtime.output_dir)
    overrides, choices = hydra_config.overrides.task, hydra_config.runtime.choices
    if hydra_config.mode == RunMode.RUN:
        with _plain_endings(folder):
            return _run_job(cfg, folder, overrides, choices)
    if was_interrupted():
        _leave_no_trace(folder)
        return math.nan
    try:
        sweep = Path(hydra_config.sweep.dir)
        with plain_interrupt(sweep), let_in():
            return _run_job(cfg, folder, overrides, choices, sweep.name)
    except KeyboardInterrupt:  # in a worker: the others are not done yet
        note_interrupt()
    except InputError as error:
        LOGGER.error("%s failed: %s", " ".join(overrides), error)
    except Exception:
        LOGGER.exception("%s failed", " ".join(overrides))
    return math.nan


def _run_job(
    cfg: DictConfig,
    folder: Path,
    overrides: Sequence[str],
    choices: Mapping[str, str | None],
    sweep: str | None = None,
) -> float:
    """Run, or find what a run that is resumed came to when it was finished; say how it ended."""
    from fedexp.schema import validate

    config = validate(plain(cfg))  # before torch is imported: most mistakes end here
    summary = runs.read_summary(folder) if config.resume else None
    if summary and summary["rounds"] == config.rounds:
        runs.check(folder, config)
    else:
        summary = _execute(config, folder, overrides, choices, sweep).summary
    from rich.console import Console

    from fedexp.tracking.progress import print_report

    if cluster.start().rank == 0:
        print_report(summary, folder, Console(), brief=sweep is not None)
    return runs.objective(summary, config.objective)


@hydra.main(version_base="1.3", config_path=config_folder(), config_name="config")
def preview_job(cfg: DictConfig) -> None:
    """Draw who holds what under the composed config, without training."""
    from fedexp.schema import validate

    folder = Path(HydraConfig.get().runtime.output_dir)
    with _plain_endings(folder):
        config = validate(plain(cfg))
        from fedexp.execution import draw_partition

        print(draw_partition(config, folder))


def run(overrides: Sequence[str] = (), config_dir: str | Path | None = None) -> RunResult:
    """Run one experiment from Python, as the command line would.

    Args:
        overrides: what would follow ``fedexp`` on the command line, for example ["rounds=5"].
        config_dir: a folder with config groups of your own, as ``--config-dir``.

    Returns:
        The run's folder, its metrics as a pandas frame, its summary and the final model.

    Raises:
        InputError: an unknown key or option, a value, a file or a combination that cannot work.
    """
    from fedexp.schema import validate

    found = [f"hydra.searchpath=[file://{Path(config_dir).resolve()}]"] if config_dir else []
    here = hydra.initialize_config_dir(config_folder(), version_base="1.3", job_name="fedexp")
    with one_line(overrides, Path(config_folder())), here:
        cfg = hydra.compose("config", [*found, *overrides], return_hydra_config=True)
        folder = Path(cfg.hydra.run.dir).resolve()
    choices = cfg.hydra.runtime.choices
    with open_dict(cfg):
        del cfg["hydra"]
    config = validate(plain(cfg))
    check_run(folder, config)
    OmegaConf.save(cfg, make_folder("hydra.run.dir", folder / ".hydra") / "config.yaml")
    OmegaConf.save(list(overrides), folder / ".hydra" / "overrides.yaml")
    return _execute(config, folder, overrides, choices)


@contextmanager
def _plain_endings(folder: Path) -> Iterator[None]:
    """A user's mistake and a Ctrl-C are one line each on the terminal, not a traceback."""
    try:
        with plain_interrupt(folder):
            yield
    except InputError as error:
        _leave_no_trace(folder)
        raise SystemExit(f"fedexp: {error}") from None


def _leave_no_trace(folder: Path) -> None:
    """Remove the folder if nothing has run in it."""
    if {path.name for path in folder.glob("*")} <= {".hydra"}:
        shutil.rmtree(folder, ignore_errors=True)  # another process may do so, too


def _execute(
    config: Config,
    folder: Path,
    overrides: Sequence[str],
    choices: Mapping[str, str | None],
    sweep: str | None = None,
) -> RunResult:
    from fedexp.execution import execute
    from fedexp.launch import Launch

    own = {group: option for group, option in choices.items() if not group.startswith("hydra/")}
    return execute(config, folder, Launch(list(overrides), own, sweep))


if __name__ == "__main__":
    # By its importable name, so that a sweep's worker processes can find it.
    from fedexp.train import main as command

    command()
