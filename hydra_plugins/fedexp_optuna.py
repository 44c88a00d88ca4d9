"""``hydra/sweeper=optuna``: a search for settings, with the study of hydra-optuna-sweeper.

Hydra imports this file at every start. The extra ``optuna``, which may be absent, is imported where
it is used.
"""

from __future__ import annotations

import logging
import math
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.utils import JobReturn, JobStatus
from hydra.plugins.launcher import Launcher
from hydra.plugins.sweeper import Sweeper
from hydra.types import HydraContext, TaskFunction
from hydra.utils import instantiate
from omegaconf import DictConfig, OmegaConf

from fedexp.cli.hydra_api import launcher_of, runs_one_by_one
from fedexp.cli.objectives import check_validated, is_lower_better
from fedexp.cli.sweeps import minutes, save_sweep
from fedexp.errors import InputError
from fedexp.reporting.papers.sweep import CELLS
from fedexp.runtime.limits import Sweep, how_to_go_on, limited_sweep, reason_to_stop_sweep

_RESULTS = "optimization_results.yaml"  # written by hydra-optuna-sweeper


class StudySweeper(Sweeper):
    """Runs the trials of a study (Optuna's word for a search); a job returns its trial's value.

    A failed trial does not end the study. The settings that Optuna chooses depend only on the seed
    of Optuna's sampler and on the results. A study that is started again in its folder with
    ``resume`` therefore repeats the finished trials from their files and then continues.

    Args:
        params: key -> range of values, in Hydra's syntax of sweeps.
        options: the options of hydra-optuna-sweeper. ``direction`` has no effect: the direction
            follows from the objective. ``n_jobs`` is 1 if jobs run one by one.
    """

    config: DictConfig
    hydra_context: HydraContext

    def __init__(self, params: Mapping[str, Any] | None, **options: Any) -> None:
        self._params = params or {}
        if OmegaConf.is_config(options.get("sampler")):  # Hydra 1.4 does not instantiate it
            options["sampler"] = instantiate(options["sampler"])
        self._options = options

    def setup(
        self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig
    ) -> None:
        """Called by Hydra before ``sweep``."""
        self.config, self.hydra_context = config, hydra_context
        self.trials = _TrialLauncher(launcher_of(hydra_context, task_function, config))

    def sweep(self, arguments: list[str]) -> None:
        """Run the study; Hydra gives the overrides of the command line."""
        objective = self._checked_objective(arguments)
        study = self._study("minimize" if is_lower_better(self.config) else "maximize")
        folder = Path(self.config.hydra.sweep.dir)
        folder.mkdir(parents=True, exist_ok=True)
        save_sweep(self.config, folder)
        with limited_sweep(folder, minutes(self.config)):
            try:
                study.sweep(arguments)
            except _StoppedError as stopped:
                line = how_to_go_on(str(stopped), "the search stopped", folder)
                print(f"fedexp: {line}", file=sys.stderr)
                Sweep.has_left_jobs = True
                return
            except ValueError:
                if self.trials.succeeded:
                    raise
                raise InputError("no trial of the search has succeeded") from None
        best = OmegaConf.load(folder / _RESULTS)
        found = " ".join(f"{key}={value}" for key, value in best.best_params.items())
        print(f"Best of {self.trials.succeeded} trials: {objective}={best.best_value:g}: {found}")

    def _checked_objective(self, arguments: Sequence[str]) -> str:
        """The objective. Raises InputError if the search cannot work or would use test data."""
        parser = OverridesParser.create(config_loader=self.hydra_context.config_loader)
        words = [*(f"{key}={value}" for key, value in self._params.items()), *arguments]
        overrides = parser.parse_overrides(words)
        swept = {each.get_key_element() for each in overrides if each.is_sweep_override()}
        fixed = {each.get_key_element() for each in overrides if not each.is_sweep_override()}
        objective = str(OmegaConf.select(self.config, "objective"))
        if CELLS in self._params:
            raise InputError(
                "hydra/sweeper=optuna: searches for the settings of one experiment, not of a table"
            )
        if "seed" in swept:
            raise InputError("seed: would be searched for the best one; give one seed")
        if not swept - fixed:  # hydra-optuna-sweeper searches no key that has one value
            raise InputError(
                "hydra/sweeper=optuna: nothing to search; take search=lr, or KEY=interval(LOW,HIGH)"
            )
        check_validated(objective)
        return objective

    def _study(self, direction: str) -> Any:
        """Make the sweeper of hydra-optuna-sweeper, which runs the study."""
        logging.getLogger("alembic").setLevel(logging.WARNING)  # logs each plugin's name
        from hydra_plugins.hydra_optuna_sweeper._impl import OptunaSweeperImpl

        fixed: dict[str, Any] = {"direction": direction, "max_failure_rate": 1.0}
        if self.trials.runs_one_by_one:
            fixed["n_jobs"] = 1
        params = OmegaConf.create(dict(self._params)) if self._params else None
        study = OptunaSweeperImpl(**{**self._options, **fixed, "params": params})
        study.config, study.hydra_context = self.config, self.hydra_context
        study.launcher = self.trials
        return study


class _StoppedError(Exception):
    """The sweep has to stop because of a signal or its time limit."""


class _TrialLauncher(Launcher):
    """A launcher that turns failed jobs into failed trials.

    Attributes:
        succeeded: the number of trials with a result.
        runs_one_by_one: whether the launcher runs one job at a time.
    """

    def __init__(self, launcher: Launcher) -> None:
        self._launcher = launcher
        self.succeeded = 0
        self.runs_one_by_one = runs_one_by_one(launcher)

    def setup(
        self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig
    ) -> None:
        """Do nothing: the wrapped launcher is already set up."""

    def launch(
        self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int
    ) -> Sequence[JobReturn]:
        """Run some trials. Raises _StoppedError if the sweep stops, as trials may be incomplete."""
        if reason := reason_to_stop_sweep():
            raise _StoppedError(reason)
        results = self._launcher.launch(job_overrides, initial_job_idx)
        if reason := reason_to_stop_sweep():
            raise _StoppedError(reason)
        for result in results:
            if result.status is JobStatus.COMPLETED and math.isnan(result.return_value):
                result.return_value = None  # a failed trial; NaN would end the whole study
            else:
                self.succeeded += result.status is JobStatus.COMPLETED
        return results
