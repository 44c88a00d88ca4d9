"""The ``fedexp`` command: it composes and checks the config, builds the experiment and runs it.

The top of the file imports only modules that Hydra needs, so ``--help``, ``--cfg job`` and
completion are quick. The job itself imports PyTorch and the other modules.
"""

from __future__ import annotations

import logging
import math
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf, open_dict

from fedexp.cli import hydra_api
from fedexp.cli.command import exit_in_one_line, remove_if_unused, run_command
from fedexp.cli.compose import compose
from fedexp.cli.option_folders import config_folder, option_folders
from fedexp.cli.own_frames import shorten
from fedexp.cli.pipes import drop_unread_output, quiet_in_a_pipe
from fedexp.cli.quoting import with_home
from fedexp.cli.resume import check_run, make_folder, with_saved_overrides
from fedexp.cli.sweeps import sweep_name
from fedexp.config.composed import to_dict
from fedexp.config.option_files import named_in_errors
from fedexp.config.wandb_variables import origins
from fedexp.distributed import launcher
from fedexp.errors import InputError
from fedexp.runtime.interrupts import exit_on_interrupt
from fedexp.runtime.limits import end_job_or_sweep, how_to_go_on, reason_to_stop_sweep
from fedexp.runtime.sweep_interrupts import record_interrupt, unblock_interrupts, was_interrupted
from fedexp.state import run_folder
from fedexp.state.disk_errors import disk_errors_in_one_line

if TYPE_CHECKING:
    from fedexp.config.schema import Config
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
    hydra_config = HydraConfig.get()
    folder = Path(hydra_config.runtime.output_dir)
    overrides = hydra_api.typed_overrides(hydra_config)
    choices = hydra_config.runtime.choices
    if hydra_config.mode == RunMode.RUN:
        with exit_in_one_line(folder):
            return _run_job(cfg, folder, overrides, choices)
    if was_interrupted() or reason_to_stop_sweep():
        remove_if_unused(folder)
        return math.nan
    try:
        sweep = Path(hydra_config.sweep.dir)
        with exit_on_interrupt(sweep), unblock_interrupts():
            return _run_job(cfg, folder, overrides, choices, sweep_name(sweep))
    except KeyboardInterrupt:  # in a worker of a sweep: its parent waits for the other jobs
        record_interrupt()
    except InputError as error:
        LOGGER.error("%s failed: %s", " ".join(overrides), error)
    except Exception as error:
        LOGGER.error("%s failed", " ".join(overrides), exc_info=shorten(error))
    return math.nan


def _run_job(
    cfg: DictConfig,
    folder: Path,
    overrides: Sequence[str],
    choices: Mapping[str, str | None],
    sweep: str | None = None,
) -> float:
    """Run the job unless its run is finished; print the report and return the objective."""
    from fedexp.config.schema import validate

    folders = option_folders(HydraConfig.get().runtime.config_sources)
    with named_in_errors(choices, folders, overrides):
        # Finds most errors before PyTorch is imported.
        config = validate(to_dict(cfg, overrides, folders))
    summary = run_folder.finished_summary(folder) if config.resume else None
    stopped = None
    if summary and summary["rounds"] == config.rounds:
        run_folder.check(folder, config)
    else:
        if sweep is None and sys.stderr.isatty() and launcher.this_process().rank == 0:
            print(f"fedexp: {_headline(config, choices)}; loading PyTorch", file=sys.stderr)
        result = _execute(
            config, folder, overrides, choices, folders, origins(cfg, overrides), sweep
        )
        summary, stopped = result.summary, result.stopped
    from rich.console import Console

    from fedexp.tracking.progress import print_report

    if launcher.this_process().rank == 0:
        is_trial = sweep is not None and choices.get("hydra/sweeper") == "optuna"
        shown = config.objective if is_trial else None
        print_report(summary, folder, Console(), brief=sweep is not None, objective=shown)
        if stopped and sweep is None:
            done = f"stopped after round {summary['rounds']} of {config.rounds}"
            print(f"fedexp: {how_to_go_on(stopped, done, folder)}", file=sys.stderr)
    if stopped:
        end_job_or_sweep(stopped)
    return run_folder.objective(summary, config.objective)


def _headline(config: Config, choices: Mapping[str, str | None]) -> str:
    """A description of the run: ``fednh on digits, 30 rounds, 10 of 20 clients in each``."""
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
    from fedexp.config.schema import validate

    overrides = with_saved_overrides(with_home(overrides))
    cfg = compose(overrides, config_dir)
    folder = Path(cfg.hydra.run.dir).resolve()
    runtime = cfg.hydra.runtime
    choices, folders = runtime.choices, option_folders(runtime.config_sources)
    with open_dict(cfg):
        del cfg["hydra"]
    with named_in_errors(choices, folders, overrides):
        config = validate(to_dict(cfg, overrides, folders))
    check_run(folder, config)
    with disk_errors_in_one_line(folder):
        OmegaConf.save(cfg, make_folder("hydra.run.dir", folder / ".hydra") / "config.yaml")
        OmegaConf.save(list(overrides), folder / ".hydra" / "overrides.yaml")
    return _execute(config, folder, overrides, choices, folders, origins(cfg, overrides))


def _execute(
    config: Config,
    folder: Path,
    overrides: Sequence[str],
    choices: Mapping[str, str | None],
    folders: Mapping[Path, str],
    origins: dict[str, str],
    sweep: str | None = None,
) -> RunResult:
    from fedexp.config.launch import Launch
    from fedexp.runtime.early import check

    own = {group: option for group, option in choices.items() if not group.startswith("hydra/")}
    with named_in_errors(choices, folders, overrides):
        early = check(config)  # finds mistakes before Lightning is imported
        from fedexp.runtime.execution import execute

        return execute(config, folder, Launch(list(overrides), own, sweep, origins), early)


if __name__ == "__main__":
    # ``main`` comes from ``fedexp.train``, not ``__main__``, so a sweep's workers can import it.
    from fedexp.train import main as command

    command()
