"""The trials of a contest, and the choice among them.

A contest is a table of experiments, methods and seeds. First, each method is tried with a few
settings and with seeds that are used for trials only. With a search budget of b, the setting with
the best validation score, averaged over these seeds, among the first b settings is chosen. With
this setting the method then runs with all seeds of the table.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fedexp.config.keys import override_key
from fedexp.errors import InputError
from fedexp.reporting.jobs import Job, by_row, values_of
from fedexp.reporting.labels import changes_results
from fedexp.reporting.leaderboard.controls import Controls, algorithm_of, read_controls

Setting = tuple[str, ...]
"""The tuned overrides of a run; empty for the preset without changes."""
Trial = frozenset[str]
"""The overrides of a trial that can change its results or its score."""
RESULTS = "leaderboard.csv"
"""The table of a contest's runs. A trial's row has its overrides, as ``text_of`` writes them."""
STATISTICS = ("final", "mean_last5")
NAMED = ("experiment", "algorithm")
"""Keys whose options name a run's cell and its method."""
DIGITS = 9
"""Means over seeds that agree in so many decimals are equal; they differ by rounding."""
_REQUIRED = ("seed", "budgets", "common", "own")
_OPTIONAL = ("statistic", "earlier", "chosen", "alone", "controls")


@dataclass(frozen=True)
class Tuning:
    """How the methods of a contest are tuned: ``hydra.sweeper.tune`` of the contest's preset.

    Attributes:
        seeds: the seeds of each trial, different from the table's seeds; none without trials.
        budgets: search budgets (numbers of trials), ascending.
        common: key -> values that every method tries besides the preset's value.
        own: algorithm -> key -> values that only this method tries besides the preset's value.
        alone: key -> values that only methods without an entry in ``own`` try, each by itself, so
            that all methods have equally many trials.
        statistic: the statistic of the objective that is compared: ``final`` or ``mean_last5``.
        earlier: folders of earlier sweeps of the contest and its ``leaderboard.csv`` files, whose
            trials are not repeated.
        chosen: the ``leaderboard.csv`` or a sweep of an earlier contest. There are no trials: each
            method runs with the setting that was chosen there. Empty: as the budgets say.
        controls: the overrides of each method's control; see ``controls``.
    """

    seeds: Sequence[int]
    budgets: Sequence[int]
    common: Mapping[str, Sequence[str]]
    own: Mapping[str, Mapping[str, Sequence[str]]]
    alone: Mapping[str, Sequence[str]] = field(default_factory=dict)
    statistic: str = STATISTICS[0]
    earlier: Sequence[str] = ()
    chosen: str = ""
    controls: Controls = field(default_factory=dict)

    @classmethod
    def read(cls, node: Mapping[str, Any]) -> Tuning:
        """Read ``hydra.sweeper.tune``; without budgets or with ``chosen`` there are no trials.

        Raises InputError for a missing, unknown or wrong entry.
        """
        if unknown := [each for each in node if each not in (*_REQUIRED, *_OPTIONAL)]:
            known = ", ".join(sorted((*_REQUIRED, *_OPTIONAL)))
            raise InputError(f"hydra.sweeper.tune.{unknown[0]}: is no key of tune; it has {known}")
        try:
            seed, budgets, common, own = (node[each] for each in _REQUIRED)
        except KeyError as error:
            raise InputError(f"hydra.sweeper.tune.{error.args[0]}: is missing") from None
        found = {name: _axes(axes) for name, axes in own.items()}
        chosen = str(node.get("chosen") or "")
        if chosen:
            budgets = []
        if budgets and seed is None:
            raise InputError("hydra.sweeper.tune.seed: is missing")
        numbers = _whole_numbers("budgets", budgets or ())
        seeds = _whole_numbers("seed", values_of(seed)) if numbers else []
        # Sweeps of earlier versions lack the other entries.
        statistic = node.get("statistic", STATISTICS[0])
        if statistic not in STATISTICS:
            raise InputError(
                f"hydra.sweeper.tune.statistic={statistic}: is none of {', '.join(STATISTICS)}"
            )
        earlier = list(map(str, node.get("earlier", ())))
        alone = _axes(node.get("alone", {}))
        rules = _axes(common), found, alone, statistic, earlier, chosen
        controls = read_controls(node.get("controls", {}))
        return cls(seeds, sorted(numbers), *rules, controls)

    def keys(self, algorithm: str) -> frozenset[str]:
        """Every key that the method tunes."""
        return frozenset([*self.common, *self._further(algorithm)])

    def settings(self, algorithm: str) -> list[Setting]:
        """The settings to try: the preset first, and no more than the largest budget.

        After the preset come all combinations of the values; combinations with own keys come last.
        A method without own keys tries the values in ``alone`` last, one at a time.
        """
        found: list[Setting] = [()]
        for key, values in [*self.common.items(), *self.own.get(algorithm, {}).items()]:
            found = [
                (*setting, *tried)
                for tried in [(), *((f"{key}={value}",) for value in values)]
                for setting in found
            ]
        if algorithm not in self.own:
            found += [(f"{key}={v}",) for key, values in self.alone.items() for v in values]
        return found[: max(self.budgets)]

    def _further(self, algorithm: str) -> Mapping[str, Sequence[str]]:
        """The axes of the method besides ``common``."""
        return self.own.get(algorithm, self.alone)

    def trials(self, jobs: Iterable[Job]) -> list[Job]:
        """One job for each experiment and method of the table, each setting and each seed."""
        return [
            [*job, *setting, f"seed={seed}"]
            for job in by_row(jobs)
            for setting in self.settings(algorithm_of(job))
            for seed in self.seeds
        ]

    def one_trial_each(self, jobs: Sequence[Job]) -> list[Job]:
        """One job of each experiment and method, with all tuned keys overridden, for a check.

        Raises InputError if a job fixes a key that is tuned, or has the trials' seed.
        """
        for seed in self.seeds:
            if any(f"seed={seed}" in job for job in jobs):
                raise InputError(
                    f"hydra.sweeper.tune.seed={seed}: is a seed of the table, too; choose another"
                )
        self.check_free(jobs)
        found = []
        for job in by_row(jobs):
            axes = {**self.common, **self._further(algorithm_of(job))}
            found.append([*job, *(f"{key}={values[-1]}" for key, values in axes.items())])
        return found

    def check_free(self, jobs: Iterable[Job]) -> None:
        """Raise InputError if a job fixes a key that its method tunes."""
        for job in jobs:
            if fixed := {*map(override_key, job)} & self.keys(algorithm_of(job)):
                raise InputError(f"{min(fixed)}: is tuned by this contest; leave it out")

    def finals(self, jobs: Sequence[Job], scores: Sequence[float]) -> list[Job]:
        """Every job of the table with each setting that a search budget chooses.

        Args:
            jobs: the table's jobs.
            scores: the objective of each job of ``trials``, in order. Higher is better; NaN if the
                trial failed.
        """
        left, found = iter(scores), []
        for row, seeds in by_row(jobs).items():
            settings = self.settings(algorithm_of(row))
            own = [mean_score([next(left) for _ in self.seeds]) for _ in settings]
            changes = list(map(len, settings))
            for trial in dict.fromkeys(choice(own, changes, budget) for budget in self.budgets):
                found += [[*job, *settings[trial]] for job in seeds]
        return found


def trial(overrides: Iterable[str]) -> Trial:
    """The trial with these overrides, in any order and with any engine."""
    keys = {each: override_key(each) for each in overrides}
    kept = ("seed", "objective")  # trials with two objectives have two scores
    return frozenset(each for each, key in keys.items() if key in kept or changes_results(key))


def text_of(overrides: Iterable[str]) -> str:
    """The overrides of a trial as a text without the first letters of a formula: the seed first."""
    words = sorted(trial(overrides), key=lambda each: (override_key(each) != "seed", each))
    return shlex.join(words)


def mean_score(scores: Sequence[float]) -> float:
    """The score of a setting over its seeds; NaN if one of its trials failed."""
    return sum(scores) / len(scores)


def choice(scores: Sequence[float], changes: Sequence[Any], budget: int) -> int:
    """The index of the best of the first ``budget`` trials.

    Of equally good trials, the trial with the fewest changes is chosen, then the first. A trial
    with the score NaN has failed. If all trials failed, they count as equally good.

    Args:
        scores: the score of each trial.
        changes: the number of keys that each trial changes in the preset, or another measure of
            the changes that can be compared.
        budget: the search budget.
    """
    tried = [-math.inf if math.isnan(score) else round(score, DIGITS) for score in scores[:budget]]
    return min(range(len(tried)), key=lambda trial: (-tried[trial], changes[trial], trial))


def changed_keys(setting: str) -> int:
    """The number of overrides in a setting of the results, such as ``optimizer.lr=1 a.b=2``."""
    return setting.count("=")


def _whole_numbers(key: str, values: Any) -> list[int]:
    try:
        return [int(each) for each in values]
    except (TypeError, ValueError):
        example = {"seed": '"900,901"', "budgets": "[1,4]"}[key]
        raise InputError(
            f"hydra.sweeper.tune.{key}: should be whole numbers, such as {example}"
        ) from None


def _axes(node: Mapping[str, Any]) -> dict[str, list[str]]:
    return {key: values_of(value) for key, value in node.items()}
