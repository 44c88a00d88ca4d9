"""The sweeper of ``fedexp -m``; Hydra takes plugins only from the package ``hydra_plugins``."""

import math
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.utils import JobReturn
from hydra.errors import HydraException
from hydra.plugins.launcher import Launcher
from hydra.plugins.sweeper import Sweeper
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig, OmegaConf

from fedexp.cli.ablate import WORD, ablation_sweep
from fedexp.cli.begun_jobs import check_begun
from fedexp.cli.compose import checked_config
from fedexp.cli.hydra_api import job_config, launcher_of, runs_one_by_one
from fedexp.cli.objectives import check_of_contest
from fedexp.cli.presets import check_parts, preset_settings
from fedexp.cli.sweeps import minutes, save_sweep
from fedexp.cli.swept_values import swept_values
from fedexp.cli.timed_rounds import announce_seconds
from fedexp.errors import InputError
from fedexp.reporting.ablation_rows import write_plain
from fedexp.reporting.factorial.design import Design
from fedexp.reporting.jobs import Job, by_row, seed_by_seed, unseeded, without_seeds
from fedexp.reporting.leaderboard.controls import with_controls
from fedexp.reporting.leaderboard.earlier import earlier_scores, new_trials, with_chosen
from fedexp.reporting.leaderboard.tuning import Tuning, trial
from fedexp.reporting.papers.sweep import CELLS, TableSweep, table_jobs, table_presets
from fedexp.runtime.limits import (
    Sweep,
    how_to_go_on,
    limited_sweep,
    reason_to_stop_sweep,
)
from fedexp.runtime.sweep_interrupts import was_interrupted
from fedexp.state.run_folder import finished_summary, objective, rounds_finished


class TableSweeper(Sweeper):
    """Runs every combination of the swept values, and the tables of papers.

    Args:
        params: key -> values that a preset sweeps, in all combinations.
        parts: for a table whose jobs are not all combinations of ``params``: the table's parts,
            each with further keys and values; see ``fedexp.reporting.papers.sweep``.
        factorial: the design of a factorial experiment, see ``fedexp.reporting.factorial.design``:
            each combination of its levels is a part of the table, or of each part.
        cells: names or patterns of a table's experiments to run; None for all experiments.
        tune: how each method of a table is tuned before it runs with all seeds, see
            ``fedexp.reporting.leaderboard.tuning``. If None, or if it has no budgets, no method is
            tuned; if it names the choices of an earlier contest, methods run with them. Its
            controls are run in each case.
        max_batch_size: the largest number of jobs that the launcher gets at a time.
    """

    config: DictConfig
    hydra_context: HydraContext
    launcher: Launcher

    def __init__(
        self,
        params: Mapping[str, Any],
        parts: Sequence[Mapping[str, Any]],
        factorial: Mapping[str, Any],
        cells: Sequence[str] | None,
        tune: Mapping[str, Any] | None,
        max_batch_size: int | None,
    ) -> None:
        self._params, self._parts = _plain(params), _plain(parts)
        self._design = Design.read(_plain(factorial))
        if self._design is not None:
            combinations = self._design.parts()
            self._parts = [{**p, **each} for p in self._parts or [{}] for each in combinations]
        self._cells, self._batch = _plain(cells), max_batch_size
        contest = Tuning.read(_plain(tune)) if tune else None
        self._controls = contest.controls if contest else {}
        self._choices = contest if contest and contest.chosen else None
        self._tuning = contest if contest and contest.budgets else None

    def setup(
        self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig
    ) -> None:
        """Called by Hydra before ``sweep``."""
        self.config, self.hydra_context = config, hydra_context
        self.launcher = launcher_of(hydra_context, task_function, config)

    def sweep(self, arguments: list[str]) -> list[Sequence[JobReturn]]:
        """Run all jobs; Hydra gives the overrides of the command line."""
        folder = Path(self.config.hydra.sweep.dir)
        jobs, ablation = self._jobs(arguments), self._ablation
        self._check(self._tuning.one_trial_each(jobs) if self._tuning else jobs)
        self._earlier = earlier_scores(self._tuning) if self._tuning else {}
        folder.mkdir(parents=True, exist_ok=True)
        trials = self._tuning.trials(jobs) if self._tuning else []
        self._new = new_trials(trials, self._earlier, folder) if trials else []
        check_begun(folder, self._new if self._tuning else jobs, self._compose)
        save_sweep(self.config, folder)
        if ablation is not None:
            self._announce(ablation.size(), ablation.rows, arguments)
            write_plain(folder, ablation.plain)
        elif self._design is not None:
            self._announce_factorial(self._design, jobs, arguments)
        with limited_sweep(folder, minutes(self.config)):
            results = self._tune_and_run(self._tuning, jobs) if self._tuning else self._launch(jobs)
            if (reason := reason_to_stop_sweep()) and (Sweep.has_left_jobs or _unfinished(results)):
                print(
                    f"fedexp: {how_to_go_on(reason, 'the sweep stopped', folder)}", file=sys.stderr
                )
        return results

    def _tune_and_run(self, tuning: Tuning, jobs: list[list[str]]) -> list[Sequence[JobReturn]]:
        """Run the trials that no earlier sweep has run, then each job with its chosen setting."""
        trials, known, new = tuning.trials(jobs), dict(self._earlier), self._new
        print(f"fedexp: first {len(new)} trials of settings", file=sys.stderr)
        results = self._launch(new)
        if was_interrupted():
            return results
        if reason_to_stop_sweep() or Sweep.has_left_jobs:  # trials without results choose nothing
            Sweep.has_left_jobs = True
            return results
        done = [each for batch in results for each in batch]
        for job, result in zip(new, done, strict=True):
            known[trial(job)] = _score(result, tuning.statistic)
        finals = self._in_order(tuning.finals(jobs, [known[trial(each)] for each in trials]))
        return results + self._launch(finals, first=len(new))

    def _launch(self, jobs: Sequence[Sequence[str]], first: int = 0) -> list[Sequence[JobReturn]]:
        """Launch the jobs until all are done or the sweep must stop; print jobs that never ran.

        ``first`` is the number of the first job.
        """
        size = self._batch or (1 if runs_one_by_one(self.launcher) else len(jobs))
        results: list[Sequence[JobReturn]] = []
        begun = 0
        while begun < len(jobs) and not (reason_to_stop_sweep() or was_interrupted()):
            results.append(self.launcher.launch(jobs[begun : begun + size], first + begun))
            begun += len(results[-1])
            for result in results[-1]:
                _ = result.return_value  # raises the error of a job that failed
                _forget_config(result)
        if reason_to_stop_sweep():
            for job in [*_not_started(jobs, results), *jobs[begun:]]:
                print(f"Not run: {' '.join(job)}")
                Sweep.has_left_jobs = True
        return results

    def _check(self, jobs: Sequence[Job]) -> None:
        """Compose each job's config, and print what their presets set besides their parts.

        A HydraException names the overrides in which jobs differ. InputError if no job has a valid
        config, for an objective that cannot choose among trials, or for a method whose part the
        experiment replaces.
        """
        everywhere = set.intersection(*map(set, jobs))
        composed = []
        for job in without_seeds(jobs):
            try:
                composed.append((self._compose(job), job))
            except HydraException as error:
                varies = " ".join(each for each in unseeded(job) if each not in everywhere)
                where = f"{varies}: " if varies else ""
                raise HydraException(f"{where}{error}") from error.__cause__
        if self._tuning is not None:
            check_of_contest(config for config, _ in composed)
        for config, job in composed:
            check_parts(config.hydra.runtime, job)
        _refuse_without_valid_job(composed)
        if line := preset_settings(composed):
            print(f"fedexp: {line}", file=sys.stderr)

    def _compose(self, job: Sequence[str]) -> DictConfig:
        """The config of a job. Raises HydraException."""
        return job_config(self.hydra_context.config_loader, self.config, job)

    def _announce(
        self, size: str, rows: Mapping[str, Sequence[Sequence[str]]], arguments: Sequence[str]
    ) -> None:
        """Print the size of a sweep, and how long its rows take, where this process runs them."""
        print(f"fedexp: {size}", file=sys.stderr)
        is_new = not any(each.startswith("resume=") for each in arguments)
        if is_new and runs_one_by_one(self.launcher):
            announce_seconds(rows, self._compose)

    def _announce_factorial(
        self, design: Design, jobs: list[list[str]], arguments: Sequence[str]
    ) -> None:
        """Print how long trials and jobs take, from the combinations with the fewest and most high
        levels; the others count as the mean of these two.
        """
        trials = self._new
        ranked = sorted([*trials, *jobs], key=design.highs)
        half = (len(ranked) + 1) // 2
        rows = {"with most levels low": ranked[:half], "high": ranked[: half - 1 : -1]}
        runs = f"{len(trials)} trials and {len(jobs)} runs" if trials else f"{len(jobs)} runs"
        size = f"{design.size()}; {runs} of {self._compose(jobs[0]).rounds} rounds"
        self._announce(size, {name: each for name, each in rows.items() if each}, arguments)

    def _jobs(self, arguments: Sequence[str]) -> list[list[str]]:
        """The overrides of each job; an ablation is kept for ``sweep``."""
        typed = self._axes(arguments)
        groups = typed.pop(WORD, None)
        jobs = self._in_order(self._with_choices(self._with_controls(self._combinations(typed))))
        self._ablation = ablation_sweep(jobs, groups, self._compose) if groups else None
        return jobs if self._ablation is None else self._ablation.jobs

    def _with_controls(self, jobs: list[list[str]]) -> list[list[str]]:
        """Add the jobs of the methods' controls, and print their number."""
        found = with_controls(jobs, self._controls)
        if further := len(found) - len(jobs):
            rows = len(by_row(found)) - len(by_row(jobs))
            print(f"fedexp: {further} further jobs of {rows} x FedAvg as control", file=sys.stderr)
        return found

    def _with_choices(self, jobs: list[list[str]]) -> list[list[str]]:
        """The jobs with the settings of an earlier contest; print the methods it lacks."""
        if self._choices is None:
            return jobs
        found, absent = with_chosen(jobs, self._choices)
        if absent:
            print(
                f"fedexp: {self._choices.chosen} has no row of {', '.join(absent)} in these cells",
                file=sys.stderr,
            )
        return found

    def _in_order(self, jobs: list[list[str]]) -> list[list[str]]:
        """A factorial experiment runs seed by seed: where it stops, whole seeds are complete."""
        return jobs if self._design is None else seed_by_seed(jobs)

    def _combinations(self, typed: dict[str, list[str]]) -> list[list[str]]:
        if self._design is not None:
            self._design.check_typed(typed)
        params, *parts = map(self._listed, (self._params, *self._parts))
        if CELLS in params or any(CELLS in part for part in parts):
            (name,) = typed.pop(CELLS)
            whole = TableSweep.read(name, params, parts)
            return table_jobs(whole, self._cells, typed, self._compose)
        if self._cells is not None:
            raise InputError(f"hydra.sweeper.cells={self._cells}: is for tables of several cells")
        self._refuse_tables(typed.get(CELLS, ()))
        if params or parts:
            return TableSweep.read("the preset", params, parts).with_typed(typed).jobs()
        return TableSweep("", [typed]).jobs()

    def _axes(self, overrides: Sequence[str]) -> dict[str, list[str]]:
        """Key -> its values in the overrides. Raises HydraException."""
        parser = OverridesParser.create(config_loader=self.hydra_context.config_loader)
        parsed = parser.parse_overrides(list(overrides))
        return {each.get_key_element(): swept_values(each) for each in parsed}

    def _listed(self, axes: Mapping[str, Any]) -> dict[str, Any]:
        """A preset's axes, with lists in place of texts such as ``range(3)``."""
        texts = [f"{key}={value}" for key, value in axes.items() if isinstance(value, str)]
        return {**axes, **self._axes(texts)}

    def _refuse_tables(self, experiments: Sequence[str]) -> None:
        """Raise InputError if one of several experiments is a table."""
        if len(experiments) < 2:
            return
        sources = [each.path for each in self.hydra_context.config_loader.get_sources()]
        known = {name for name, _ in table_presets(Path(each) for each in sources)}
        for each in experiments:
            if each in known:
                raise InputError(
                    f"experiment={','.join(experiments)}: {each} sweeps by itself; name it alone"
                )


def _refuse_without_valid_job(composed: Sequence[tuple[DictConfig, Job]]) -> None:
    """Raise the InputError of the first job if no job has a valid config; others fail alone."""
    refused: list[InputError] = []
    for config, job in composed:
        try:
            checked_config(config, config.hydra, job)
        except InputError as error:
            refused.append(error)
        else:
            return
    if refused:
        raise refused[0]


def _forget_config(result: JobReturn) -> None:
    """Keep what the sweep reads later: the configs of thousands of jobs fill gigabytes."""
    if result.cfg is not None:
        result.cfg = OmegaConf.masked_copy(result.cfg, ["objective", "rounds"])
    if result.hydra_cfg is not None:
        folder = result.hydra_cfg.hydra.runtime.output_dir
        result.hydra_cfg = OmegaConf.create({"hydra": {"runtime": {"output_dir": folder}}})


def _not_started(
    jobs: Sequence[Sequence[str]], results: Sequence[Sequence[JobReturn]]
) -> list[Sequence[str]]:
    """The launched jobs that did not create their folder."""
    folders = [_folder(each) for result in results for each in result]
    pairs = zip(jobs, folders, strict=False)
    return [job for job, folder in pairs if folder is not None and not folder.exists()]


def _unfinished(results: Sequence[Sequence[JobReturn]]) -> bool:
    """Whether a job failed or stopped before its last round."""
    launched = [(each.cfg, _folder(each)) for result in results for each in result]
    return any(
        rounds_finished(folder) < cfg.rounds
        for cfg, folder in launched
        if cfg is not None and folder is not None
    )


def _score(trial: JobReturn, statistic: str) -> float:
    """The statistic of a trial's objective; NaN if the trial failed."""
    if math.isnan(trial.return_value):
        return math.nan
    folder = _folder(trial)
    assert trial.cfg is not None  # it has run
    assert folder is not None
    summary = finished_summary(folder)
    return math.nan if summary is None else objective(summary, trial.cfg.objective, statistic)


def _folder(job: JobReturn) -> Path | None:
    """The job's folder; None if its launcher does not name it."""
    return None if job.hydra_cfg is None else Path(job.hydra_cfg.hydra.runtime.output_dir)


def _plain(node: Any) -> Any:
    return OmegaConf.to_container(node) if OmegaConf.is_config(node) else node
