"""Hydra callbacks around runs and sweeps; ``config.yaml`` lists them under ``hydra.callbacks``.

Hydra creates them at every start, also for ``--help``: slow imports are in the methods.
"""

from pathlib import Path
from typing import Any

from hydra.experimental.callback import Callback
from omegaconf import DictConfig

from fedexp.cli.resume import check_run_folder, check_sweep_folder
from fedexp.cli.tables import announce_single_cell
from fedexp.runtime.sweep_interrupts import block_interrupts, end_interrupted_sweep


class ProtectRuns(Callback):
    """Refuses a folder that belongs to another run, before Hydra writes its own files there."""

    def on_run_start(self, config: DictConfig, **kwargs: Any) -> None:
        """Called by Hydra before it creates the run's folder."""
        check_run_folder(config)
        announce_single_cell(config)

    def on_multirun_start(self, config: DictConfig, **kwargs: Any) -> None:
        """Called by Hydra before it creates the sweep's folder."""
        check_sweep_folder(config)


class SweepTable(Callback):
    """Prints the table over all jobs and writes it to ``sweep.csv``; names the failed jobs."""

    def on_multirun_end(self, config: DictConfig, **kwargs: Any) -> None:
        """Called by Hydra in the parent process, after the last job; exit code 1 if one failed."""
        from fedexp.reporting.sweep import report_sweep

        if not report_sweep(Path(config.hydra.sweep.dir), f"{config.hydra.job.name}.log"):
            raise SystemExit(1)


class FinishRoundOnInterrupt(Callback):
    """With ``hydra/launcher=joblib``, a Ctrl-C ends each job after its round is saved."""

    def on_multirun_start(self, config: DictConfig, **kwargs: Any) -> None:
        """Called by Hydra in the parent, before the first job."""
        if "joblib" in config.hydra.launcher._target_:
            block_interrupts()

    def on_multirun_end(self, config: DictConfig, **kwargs: Any) -> None:
        """Called by Hydra in the parent, after the last job; exit code 130 after a Ctrl-C."""
        end_interrupted_sweep(Path(config.hydra.sweep.dir))
