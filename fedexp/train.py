"""The ``fedexp`` command: it composes and checks the config, builds the experiment and runs it.

The top of the file imports only modules that Hydra needs, so ``--help``, ``--cfg job`` and
completion are quick. The job itself imports PyTorch and the other modules.
"""

from __future__ import annotations

import logging
import math
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf

from fedexp.cli import hydra_api
from fedexp.cli.command import exit_in_one_line, remove_if_unused, run_command
from fedexp.cli.compose import Checked, checked_config, checked_once, compose, without_hydra
from fedexp.cli.imports import quick_imports
from fedexp.cli.option_folders import config_folder
from fedexp.cli.own_frames import shorten
from fedexp.cli.pipes import drop_unread_output, quiet_in_a_pipe
from fedexp.cli.quoting import with_home
from fedexp.cli.resume import check_run, hydra_files_kept, make_folder, with_saved_overrides
from fedexp.cli.sweeps import sweep_name
from fedexp.distributed import launcher
from fedexp.errors import InputError
from fedexp.runtime.interrupts import exit_on_interrupt
from fedexp.runtime.limits import (
    end_job_or_sweep,
    how_to_go_on,
    is_limited_sweep,
    reason_to_stop_sweep,
)
from fedexp.runtime.sweep_interrupts import record_interrupt, unblock_interrupts, was_interrupted
from fedexp.state import failed_jobs, run_folder
from fedexp.state.disk_errors import disk_errors_in_one_line
from fedexp.tracking.early_wandb import import_wandb

if TYPE_CHECKING:
    from fedexp.runtime.result import RunResult

LOGGER = logging.getLogger(__name__)


@quiet_in_a_pipe()
def main() -> None:
    """The ``fedexp`` command."""
    run_command(job)


@hydra_api.command(config_folder())
def job(cfg: DictConfig) -> float:
    """Run one job. Returns the ``objective``, the value that Hydra's sweepers optimise.

    If a job of a sweep fails, this function logs the error and returns NaN. The other jobs go on,
    and the sweep ends with exit code 1.
    """
    drop_unread_output()  # in a worker of a sweep
    of_hydra = HydraConfig.get()
    folder = Path(of_hydra.runtime.output_dir)
    if of_hydra.mode == RunMode.RUN:
        with exit_in_one_line(folder):
            return _run_job(checked_once(cfg, of_hydra), folder)
    if was_interrupted() or reason_to_stop_sweep():
        remove_if_unused(folder)
        return math.nan
    overrides, sweep = hydra_api.typed_overrides(of_hydra), Path(of_hydra.sweep.dir)
    try:
        is_trial = of_hydra.runtime.choices.get("hydra/sweeper") == "optuna"
        with exit_on_interrupt(sweep), unblock_interrupts():
            checked = _as_job(checked_config(cfg, of_hydra, overrides))
            return _run_job(checked, folder, sweep_name(sweep), is_trial)
    except KeyboardInterrupt:  # in a worker of a sweep: its parent waits for the other jobs
        record_interrupt()
        return math.nan
    except InputError as error:
        LOGGER.error("%s failed: %s", " ".join(overrides), error)
    except Exception as error:
        LOGGER.error("%s failed", " ".join(overrides), exc_info=shorten(error))
    failed_jobs.record(sweep, of_hydra.job.num, folder)
    return math.nan


def _as_job(checked: Checked) -> Checked:
    """The job of a sweep, which goes on with a run that is in its folder.

    No other sweep can be there. SLURM and Ray start a job again after its machine has died. The
    sweep's time limit is not the job's: without checkpoints it ends the sweep between two jobs.
    """
    changed: dict[str, Any] = {"resume": checked.config.resume or run_folder.AUTO}
    if is_limited_sweep():
        changed["limits"] = checked.config.limits.model_copy(update={"minutes": None})
    return replace(checked, config=checked.config.model_copy(update=changed))


def _run_job(
    checked: Checked, folder: Path, sweep: str | None = None, is_trial: bool = False
) -> float:
    """Run the job unless its run is finished; print the report and return the objective.

    ``is_trial`` says whether the job is a trial of a search, whose report names the objective.
    """
    config, is_first = checked.config, launcher.this_process().rank == 0
    summary = run_folder.finished_summary(folder) if config.resume else None
    stopped = None
    if summary and summary["rounds"] == config.rounds:
        run_folder.check(folder, config)
    else:
        if sweep is None and sys.stderr.isatty() and is_first:
            print(f"fedexp: {_headline(checked)}; loading PyTorch", file=sys.stderr)
        result = _execute(checked, folder, sweep)
        summary, stopped = result.summary, result.stopped
    if is_first:
        from rich.console import Console

        from fedexp.tracking.progress import print_report

        shown = config.objective if is_trial else None
        print_report(summary, folder, Console(), brief=sweep is not None, objective=shown)
        if stopped and sweep is None:
            done = f"stopped after round {summary['rounds']} of {config.rounds}"
            print(f"fedexp: {how_to_go_on(stopped, done, folder)}", file=sys.stderr)
    if stopped:
        end_job_or_sweep(stopped)
    return run_folder.objective(summary, config.objective)


def _headline(checked: Checked) -> str:
    """A description of the run: ``fednh on digits, 30 rounds, 10 of 20 clients in each``."""
    config, choices = checked.config, checked.launch.choices
    clients = f"{config.clients.per_round} of {config.clients.count} clients in each"
    return f"{choices['algorithm']} on {choices['data']}, {config.rounds} rounds, {clients}"


def run(overrides: Sequence[str] = (), config_dir: str | Path | None = None) -> RunResult:
    """Run one experiment from Python, as the ``fedexp`` command does.

    Args:
        overrides: the words after ``fedexp`` on the command line, for example ["rounds=5"].
        config_dir: a folder with your own config groups, like ``--config-dir``.

    Returns:
        The run's folder, metrics (a pandas DataFrame), summary and final model.

    Raises:
        InputError: a key or option is unknown, or a value, a file or a combination cannot work.
    """
    overrides = with_saved_overrides(with_home(overrides))
    cfg = compose(overrides, config_dir)
    folder = Path(cfg.hydra.run.dir).resolve()
    checked = checked_config(cfg, cfg.hydra, overrides)
    check_run(folder, checked.config)
    with hydra_files_kept(folder):
        with disk_errors_in_one_line(folder):
            saved = make_folder("hydra.run.dir", folder / ".hydra")
            OmegaConf.save(without_hydra(cfg), saved / "config.yaml")
            OmegaConf.save(OmegaConf.masked_copy(cfg, "hydra"), saved / "hydra.yaml")
            OmegaConf.save(list(overrides), saved / "overrides.yaml")
        return _execute(checked, folder)


def _execute(checked: Checked, folder: Path, sweep: str | None = None) -> RunResult:
    with checked.named_in_errors():
        with quick_imports():
            from fedexp.runtime.early import check

            early = check(checked.config)  # finds mistakes before Lightning is imported
            if checked.config.tracking.wandb.mode != "disabled":
                import_wandb()
            from fedexp.runtime.execution import execute

        return execute(checked.config, folder, replace(checked.launch, sweep=sweep), early)


if __name__ == "__main__":
    # ``main`` comes from ``fedexp.train``, not ``__main__``, so a sweep's workers can import it.
    from fedexp.train import main as command

    command()
