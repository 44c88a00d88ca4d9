"""Hydra callbacks around runs and sweeps; ``config.yaml`` lists them under ``hydra.callbacks``.

Hydra creates them at every start, even for ``--help``, so slow imports are inside the methods.
"""

from pathlib import Path
from typing import Any

from hydra.experimental.callback import Callback
from omegaconf import DictConfig, OmegaConf, read_write

from fedexp.cli.resume import check_run_folder, check_sweep_folder
from fedexp.reporting.papers.sweep import announce_single_cell
from fedexp.runtime.limits import Sweep
from fedexp.runtime.sweep_interrupts import block_interrupts, end_interrupted_sweep
from fedexp.state import failed_jobs

_OWN_PLUGINS = {
    "hydra_plugins.hydra_optuna_sweeper.optuna_sweeper.OptunaSweeper": (
        "hydra_plugins.fedexp_optuna.StudySweeper"
    ),
    "hydra_plugins.hydra_ray_launcher.ray_launcher.RayLauncher": (
        "hydra_plugins.fedexp_ray.RayLauncher"
    ),
    "hydra_plugins.hydra_submitit_launcher.submitit_launcher.SlurmLauncher": (
        "hydra_plugins.fedexp_submitit.SlurmLauncher"
    ),
    "hydra_plugins.hydra_submitit_launcher.submitit_launcher.LocalLauncher": (
        "hydra_plugins.fedexp_submitit.LocalLauncher"
    ),
}


class ProtectRuns(Callback):
    """Refuses a folder that holds another run, before Hydra writes files into the folder."""

    def on_run_start(self, config: DictConfig, **kwargs: Any) -> None:
        """Before Hydra creates the folder, check it; print what a run without ``-m`` leaves out."""
        check_run_folder(config)
        announce_single_cell(config)

    def on_multirun_start(self, config: DictConfig, **kwargs: Any) -> None:
        """Called by Hydra before it creates the sweep's folder."""
        check_sweep_folder(config)


class AdaptPlugins(Callback):
    """Replaces other packages' sweepers and launchers with fedexp's subclasses.

    The subclasses handle failed jobs, signals and time limits like fedexp's own sweeps. Options
    keep their names and defaults, except that Optuna's sampler gets ``seed`` by default.
    """

    def on_multirun_start(self, config: DictConfig, **kwargs: Any) -> None:
        """Called by Hydra before it creates the sweeper and the launcher."""
        with read_write(config), read_write(config.hydra):
            for node in (config.hydra.sweeper, config.hydra.launcher):
                node._target_ = _OWN_PLUGINS.get(node._target_, node._target_)
            sampler = config.hydra.sweeper.get("sampler")
            if sampler is not None and sampler.get("seed", 0) is None:  # Optuna would draw one
                sampler.seed = config.seed


class SweepTable(Callback):
    """Prints the table of a sweep's jobs, writes it to ``sweep.csv``, and names failed jobs."""

    def on_multirun_start(self, config: DictConfig, **kwargs: Any) -> None:
        """Called by Hydra before the first job; forgets the failed jobs of an earlier start."""
        failed_jobs.take(Path(config.hydra.sweep.dir))

    def on_multirun_end(self, config: DictConfig, **kwargs: Any) -> None:
        """Called by Hydra in the parent after the last job.

        Exits with 1 if a job failed, and with 75 if a job stopped before its last round or was not
        started. A contest ends with the command that writes its tables, in place of the table; its
        trials may fail, so failed jobs are only named, unless the contest takes its choices from an
        earlier one. A factorial experiment ends with the command that says which part to add first.
        """
        from fedexp.reporting.sweep import UNFINISHED, exit_code, jobs, report_sweep

        log_name, folder = f"{config.hydra.job.name}.log", Path(config.hydra.sweep.dir)
        is_factorial = bool(OmegaConf.select(config, "hydra.sweeper.factorial.factors"))
        effects = f"fedexp-report {folder} --factorial --to DIR says which part to add first"
        if OmegaConf.select(config, "hydra.sweeper.tune.budgets"):
            may_fail = not OmegaConf.select(config, "hydra.sweeper.tune.chosen")
            code = exit_code(*jobs(folder), log_name, may_fail)
            contest = f"fedexp-leaderboard {folder} --to DIR writes its tables and pictures"
            print(effects if is_factorial else contest)
        else:
            choices = OmegaConf.select(config, "hydra.runtime.choices") or {}
            is_search = choices.get("hydra/sweeper") == "optuna"
            objective = config.objective if is_search else None
            code = report_sweep(folder, log_name, objective)
            if is_factorial:
                print(effects)
        if code or Sweep.has_left_jobs:
            raise SystemExit(code or UNFINISHED)


class FinishRoundOnInterrupt(Callback):
    """Lets each job save its round after a Ctrl-C, with ``hydra/launcher=joblib``."""

    def on_multirun_start(self, config: DictConfig, **kwargs: Any) -> None:
        """Called by Hydra in the parent, before the first job."""
        if "joblib" in config.hydra.launcher._target_:
            block_interrupts()

    def on_multirun_end(self, config: DictConfig, **kwargs: Any) -> None:
        """Called by Hydra in the parent after the last job; exits with 130 after a Ctrl-C."""
        end_interrupted_sweep(Path(config.hydra.sweep.dir))
