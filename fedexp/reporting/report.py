"""A report that compares runs, also with the numbers that their papers published.

It has data frames with all numbers, and tables to read.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence, Set
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import cached_property
from pathlib import Path
from typing import Self

import pandas as pd

from fedexp.errors import InputError
from fedexp.reporting import statistics
from fedexp.reporting.ablation import Ablation
from fedexp.reporting.ablation_rows import read_plain
from fedexp.reporting.also_differs import also_differs
from fedexp.reporting.baseline import Baselines, find_baselines, parse_baseline
from fedexp.reporting.drawing import Drawing
from fedexp.reporting.labels import Label, label_runs, text
from fedexp.reporting.local_training import local_training
from fedexp.reporting.marks import with_marks
from fedexp.reporting.origins import searched_keys
from fedexp.reporting.papers.personal import personal_table
from fedexp.reporting.papers.published import published_by
from fedexp.reporting.papers.table import paper_tables
from fedexp.reporting.papers.verdicts import Verdict, as_row, beside_the_paper
from fedexp.reporting.runs import Run, read_runs
from fedexp.reporting.setting import random_sources, setting_of
from fedexp.reporting.statistics import AXES, ROUNDS_TO, SMOOTHED_ROUNDS_TO, STATISTICS, Measures
from fedexp.reporting.table import Table, difference_table, order_metrics, results_table
from fedexp.reporting.unfinished import how_to_finish

_FRAMES = ("values", "results", "differences", "curves")
_ROUNDS = (ROUNDS_TO, SMOOTHED_ROUNDS_TO)
_ALWAYS = ("global/", "personal/", "train/", "validation/")
"""Prefixes of the metrics that runs measure by default."""


@dataclass(frozen=True)
class Report:
    """Runs, and the numbers and tables that compare them.

    Attributes:
        runs: the runs that could be read; no two runs have equal label and seed.
        problems: one line for each run, comparison or picture that the report leaves out, for each
            unfinished run, which no mean counts, and for each of ``measures.targets`` that no run
            reached.
        baseline: the keys and values that make a run a baseline, such as
            ``(("algorithm", "fedavg"),)``; empty without baseline.
        measures: targets, further metrics, and whether curves are smoothed.
        statistic: the statistic in the tables: ``final``, ``best``, ``mean_last5`` and so on.
        left_out: the number of folders that are not among the runs, each with a line in problems.
    """

    runs: list[Run]
    problems: list[str]
    baseline: Label = ()
    measures: Measures = field(default_factory=Measures)
    statistic: str = "final"
    left_out: int = 0

    @classmethod
    def read(
        cls,
        paths: str | Path | Iterable[str | Path],
        baseline: str | None = None,
        statistic: str = "final",
        targets: Sequence[float] = (),
        metrics: Sequence[str] = (),
        smooth: bool = False,
        against: str = "round",
    ) -> Self:
        """Read runs and compare them.

        Args:
            paths: folders of runs or sweeps, or folders that contain such folders.
            baseline: overrides of the runs to compare with, such as ``algorithm=fedavg``. The
                report then also has each run's rounds to the baseline's best global accuracy.
            statistic: the statistic in the tables: ``final``, ``best``, ``mean_last5`` or
                ``at_best_validation``.
            targets: global accuracies to which rounds, bytes and seconds are counted.
            metrics: the metrics in the tables; empty for the default of ``Report.metrics``.
            smooth: whether to smooth curves (Savitzky-Golay, window 13, order 3), and to count
                rounds to targets on the smoothed curves, too; verdicts compare these.
            against: the horizontal axis of the curves: ``round``, ``seconds`` (simulated) or
                ``bytes``.

        Raises:
            InputError: no run could be read; no run, or every run, is a baseline; a metric of
                ``metrics`` was measured in no run; no run has the statistic; or ``statistic`` or
                ``against`` is unknown.
        """
        if statistic not in STATISTICS:
            raise InputError(f"statistic={statistic}: is none of {', '.join(STATISTICS)}")
        if against not in AXES:
            raise InputError(f"against={against}: is none of {', '.join(AXES)}")
        given = [paths] if isinstance(paths, str | Path) else paths
        runs, problems = read_runs(map(Path, given), published_by)
        if not runs:
            raise InputError("\n".join(problems) or "no folder given")
        measures = Measures(tuple(targets), tuple(metrics), smooth, against)
        return cls.of(runs, problems, baseline, measures, statistic)

    @classmethod
    def of(
        cls,
        runs: Sequence[Run],
        problems: Sequence[str],
        baseline: str | None,
        measures: Measures,
        statistic: str = "final",
    ) -> Self:
        """Compare runs that are already read; ``problems`` has a line for each run left out."""
        kept, repeated = _without_repeats(runs)
        labels = label_runs(kept, searched_keys(kept))
        pairs = parse_baseline(baseline, kept, labels) if baseline else ()
        _, alone = find_baselines(labels, pairs)
        unfinished = [how_to_finish(run) for run in kept if not run.finished]
        lines = [*problems, *repeated, *unfinished, *alone]
        made = cls(kept, lines, pairs, measures, statistic, len(problems) + len(repeated))
        made.problems.extend(made._without_pairs())
        made.problems.extend(made._without_full_method())
        made._check_measured()
        return made

    def _without_pairs(self) -> Iterator[str]:
        """Yield a line for each label that has no seed in common with its baseline."""
        seeds = {
            label: {run.seed for run in runs if run.finished}
            for label, runs in self.configurations.items()
        }
        for label, base in self.baselines.items():
            if label != base and seeds[label].isdisjoint(seeds[base]):
                yield (
                    f"{text(label)}: not compared with a baseline, as no finished run of "
                    f"{text(base)} has one of its seeds"
                )

    def _without_full_method(self) -> Iterator[str]:
        """Yield a line for each row of an ablation that cannot be compared."""
        for label in self.ablation.left_out:
            why = "its full method is not among the runs, or several rows could be it"
            yield f"{text(label)}: not in the table of the ablation, as {why}"

    def _check_measured(self) -> None:
        """Check metrics and statistic; add problems of targets not reached and of short curves.

        Raises:
            InputError: a metric of ``measures.metrics`` was measured in no run, no run measured a
                headline metric, or no run has the statistic.
        """
        metrics = self.measures.metrics
        measured = set(self.values["metric"]) if len(self.values) else set()
        if missing := [name for name in metrics if name not in measured]:
            in_history = {name for run in self.runs for name in run.history[-1]}
            known = sorted(measured | in_history)
            close = {each for name in missing for each in get_close_matches(name, known)}
            advice = (
                f"did you mean {' or '.join(sorted(close))}?"
                if close
                else f"there are: {', '.join(known)}"
            )
            raise InputError(f"metrics={','.join(missing)}: not measured; {advice}")
        if not measured:
            raise InputError("no run measured a headline metric")
        if self.statistic not in set(self.values["statistic"]):
            raise InputError(f"statistic={self.statistic}: no run has it")
        for target in self.measures.targets:
            if f"{ROUNDS_TO}{target:g}" not in self.reached:
                self.problems.append(unreached(target))
        if self.measures.smooth:
            self.problems.extend(self._too_short_to_smooth())

    def _too_short_to_smooth(self) -> Iterator[str]:
        """Yield a line for the metrics that equally many runs measured too seldom."""
        metrics: dict[int, list[str]] = {}
        for metric in self.curve_metrics:
            short = sum(not statistics.fills_window(run.history, metric) for run in self.runs)
            metrics.setdefault(short, []).append(metric)
        for short in metrics.keys() - {0}:
            yield (
                f"{', '.join(metrics[short])}: {short} of {len(self.runs)} runs have fewer than "
                f"{statistics.SMOOTHING[0]} measurements, too few to be smoothed"
            )

    @cached_property
    def better(self) -> dict[str, str]:
        """Headline metric -> its better direction, ``higher`` or ``lower``.

        A metric is absent if runs disagree about the direction.
        """
        declared = {each for run in self.runs for each in run.headlines.items()}
        names = Counter(name for name, _ in declared)
        ordered = {name: each for run in self.runs for name, each in run.headlines.items()}
        return {name: each for name, each in ordered.items() if names[name] == 1}

    @cached_property
    def directions(self) -> dict[str, str]:
        """Metric or pattern such as ``cost/*`` -> ``higher`` or ``lower``, whichever is better.

        The entries come from the runs' ``directions`` and from ``better``, which takes precedence.
        """
        return {
            name: each for run in self.runs for name, each in run.directions.items()
        } | self.better

    @cached_property
    def labels(self) -> list[Label]:
        """The label of each run: the keys that tell it from other runs, and all searched keys."""
        return label_runs(self.runs, searched_keys(self.runs))

    @property
    def keys(self) -> list[str]:
        """The config keys of the labels."""
        return [key for key, _ in self.labels[0]] if self.labels else []

    @cached_property
    def configurations(self) -> dict[Label, list[Run]]:
        """Label -> the runs with this label, one for each seed."""
        found: dict[Label, list[Run]] = {}
        for run, label in zip(self.runs, self.labels, strict=True):
            found.setdefault(label, []).append(run)
        return found

    @cached_property
    def values(self) -> pd.DataFrame:
        """A frame with a row for each run, metric and statistic; see ``statistics.per_run``."""
        return statistics.per_run(self.runs, self.labels, self.measures, self.baselines)

    @cached_property
    def baselines(self) -> Baselines:
        """Label -> label of its baseline, for the labels that have one."""
        return find_baselines(self.labels, self.baseline)[0]

    @cached_property
    def results(self) -> pd.DataFrame:
        """A frame of means and standard deviations over seeds, and marks of the best rows.

        See ``statistics.over_seeds`` and ``marks.with_marks``.
        """
        results = statistics.over_seeds(self.values, self.keys)
        return with_marks(results, self.values, self.keys, self.directions, self.baselines)

    @cached_property
    def differences(self) -> pd.DataFrame:
        """A frame of paired differences to the baseline; see ``statistics.differences``."""
        return statistics.differences(self.values, self.keys, self.baselines)

    @property
    def curves(self) -> pd.DataFrame:
        """A frame of the ``curve_metrics``, with a row for each run and measured round.

        Columns: the labels' keys, ``seed``, ``round``, then the metrics.
        """
        rows = [
            (*(value for _, value in label), run.seed, number, *map(row.get, self.curve_metrics))
            for run, label in zip(self.runs, self.labels, strict=True)
            for number, row in enumerate(run.history, start=1)
            if any(metric in row for metric in self.curve_metrics)
        ]
        return pd.DataFrame(rows, columns=[*self.keys, "seed", "round", *self.curve_metrics])

    @cached_property
    def reached(self) -> set[str]:
        """The measured metrics, without the costs of targets that no run reached."""
        return set(self.values.loc[~self.values["at_bound"], "metric"])

    @cached_property
    def metrics(self) -> list[str]:
        """The metrics in the tables: ``measures.metrics`` and the rounds to ``measures.targets``.

        If ``measures.metrics`` is empty, the tables show the global accuracy, the
        ``personal_metrics``, the headlines of measures that are not on by default, and the rounds
        to targets and to the baseline's best. If no run measured any of these metrics, the tables
        show the first measured metric.
        """
        measured = [name for name in self.values["metric"].unique() if name in self.reached]
        if self.measures.metrics:
            asked = (f"{cost}{target:g}" for target in self.measures.targets for cost in _ROUNDS)
            reached = (name for name in asked if name in measured)
            return list(dict.fromkeys([*self.measures.metrics, *reached]))
        personal = [name for name in measured if name.startswith("personal/accuracy")]
        personal = [name for name in personal if name in self.personal_metrics] or personal
        rounds = [name for name in measured if name.startswith(_ROUNDS)]
        added = [name for name in self.better if not name.startswith(_ALWAYS)]
        shown = ("global/accuracy", *personal, *added, *rounds)
        found = [name for name in shown if name in measured]
        return order_metrics(found) or order_metrics(measured)[:1]

    @cached_property
    def curve_metrics(self) -> list[str]:
        """The metrics in the tables that runs measure in rounds, unlike ``rounds_to/<target>``."""
        return [name for name in self.metrics if name in self.round_metrics]

    @cached_property
    def round_metrics(self) -> list[str]:
        """All metrics that any run measured in any round, in alphabetical order."""
        return sorted({name for run in self.runs for row in run.history for name in row})

    @property
    def heading(self) -> list[str]:
        """Two lines: the number of runs; then data, partition, clients, rounds and model."""
        seeds = {run.seed for run in self.runs}
        counts = (
            f"{len(self.runs)} runs, {len(self.configurations)} configurations, "
            f"{len(seeds)} seed{'s' if len(seeds) > 1 else ''}"
        )
        return [counts, setting_of(self.runs)]

    @property
    def targets(self) -> list[float]:
        """The target accuracies; for each, the report counts the rounds until a run reaches it."""
        own = (target for run in self.runs for target in run.targets)
        return sorted(map(float, {*self.measures.targets, *own}))

    @property
    def personal_metrics(self) -> Set[str]:
        """All metrics with published numbers.

        The tables show the personal accuracies of these; if no run measured any of them, all
        others.
        """
        return {row.metric for run in self.runs for row in published_by(run)}

    @cached_property
    def verdicts(self) -> list[Verdict]:
        """Each published number with our number and a verdict; see ``beside_the_paper``."""
        return beside_the_paper(self.runs, self.measures.smooth)

    @property
    def frames(self) -> dict[str, pd.DataFrame]:
        """File name without suffix -> data frame of numbers."""
        found = {name: getattr(self, name) for name in _FRAMES}
        found |= {"ablation": self.ablation.frame} if self.ablation.full else {}
        return found | {"paper": pd.DataFrame(map(as_row, self.verdicts))}

    @cached_property
    def ablation(self) -> Ablation:
        """The ablation among the runs; without rows if there is none."""
        return Ablation.among(self.configurations, self.values, self.keys)

    def further_tables(self) -> list[Table]:
        """The tables before the list of runs: of an ablation, and of the published numbers.

        There is one table for each experiment and column of a published table. If a paper reports a
        personal metric, the last table defines each paper's personal accuracy.
        """
        ablation = self.ablation.table(self.metrics, self.statistic)
        found = [*filter(None, [ablation]), *paper_tables(self.verdicts)]
        is_personal = any(name.startswith("personal/") for name in self.personal_metrics)
        return [*found, personal_table()] if is_personal else found

    def further_drawings(self) -> Iterable[Drawing]:
        """The pictures of an ablation, and bar charts of our values and the published values."""
        from fedexp.reporting.papers.bars import bar_drawings  # needs matplotlib; tables do not

        return [
            *self.ablation.drawings(self.metrics, self.statistic),
            *bar_drawings(self.verdicts),
        ]

    def tables(self) -> list[Table]:
        """Every table of the report, in order."""
        return list(self._tables) if self.runs else []

    @cached_property
    def _tables(self) -> list[Table]:
        results = results_table(self.results, self.keys, self.metrics, self.statistic)
        found, title = [results], f"Difference to {text(self.baseline)}"
        if not (frame := self.differences).empty:
            found.append(difference_table(frame, self.keys, self.metrics, self.statistic, title))
        unvaried = also_differs(self.configurations)
        found += [] if unvaried is None else [unvaried]
        told = [random_sources(self.runs), local_training(self.runs, self.keys)]
        results.notes.extend(filter(None, told))
        return [*found, *self.further_tables(), self._runs_table()]

    def _runs_table(self) -> Table:
        """A row for each run: its rounds, seconds and folder. The notes have the runs' warnings."""
        rows = []
        for run, label in zip(self.runs, self.labels, strict=True):
            seconds = "" if run.wall_time is None else f"{run.wall_time:.0f}"
            rows.append([text(label), str(run.seed), run.progress, seconds, run.place])
        notes = [f"{run.place}: {each}." for run in self.runs for each in run.warnings]
        return Table("Runs", ["run", "seed", "rounds", "seconds", "folder"], rows, notes=notes)


def unreached(target: float) -> str:
    """The line about a target that no run reached."""
    return f"target {target:g}: no run reached it"


def _without_repeats(runs: Sequence[Run]) -> tuple[list[Run], list[str]]:
    """The longest run of each label and seed, and a line for each run that is left out.

    Of equally long runs one of an ablation is kept, which needs all its rows, else the first.
    """
    kept: dict[tuple[Label, int], Run] = {}
    problems = []
    for run, label in zip(runs, label_runs(runs), strict=True):
        other = kept.setdefault((label, run.seed), run)
        if other is run:
            continue
        longer, left_out = (run, other) if _rank(run) > _rank(other) else (other, run)
        kept[label, run.seed] = longer
        problems.append(
            f"{left_out.place}: left out, as {longer.place} has the same config and seed"
        )
    return list(kept.values()), problems


def _rank(run: Run) -> tuple[int, bool]:
    return len(run.history), bool(read_plain(run.folder.parent))
