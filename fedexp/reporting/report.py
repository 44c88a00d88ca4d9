"""A report over any runs: its frames, its tables, and the files it is written to."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import pandas as pd

from fedexp.errors import InputError
from fedexp.reporting.labels import Label, label_runs, override_key, text
from fedexp.reporting.paper import Verdict, beside_the_paper
from fedexp.reporting.paper_table import paper_tables, signed
from fedexp.reporting.runs import Run, read_runs
from fedexp.reporting.statistics import differences, over_seeds, per_run
from fedexp.reporting.table import Table, order_metrics, results_table


@dataclass(frozen=True)
class Report:
    """Runs and what follows from them.

    Attributes:
        runs: all that could be read.
        problems: one line for each thing that could not.
        baseline: what makes a row a baseline, such as ``(("algorithm", "fedavg"),)``; may be empty.
        targets: accuracies to which rounds, bytes and seconds are counted.
        statistic: what the results show: ``final``, ``best``, ``mean_last5`` ...
    """

    runs: list[Run]
    problems: list[str]
    baseline: Label = ()
    targets: tuple[float, ...] = ()
    statistic: str = "final"

    @cached_property
    def labels(self) -> list[Label]:
        """What tells each run from the others."""
        return label_runs(self.runs)

    @property
    def keys(self) -> list[str]:
        """The keys in which the runs differ, seeds aside."""
        return [key for key, _ in self.labels[0]] if self.labels else []

    @cached_property
    def values(self) -> pd.DataFrame:
        """One line for each run, metric and statistic; see ``statistics.per_run``."""
        return per_run(self.runs, self.targets)

    @cached_property
    def results(self) -> pd.DataFrame:
        """Mean, standard deviation and n over seeds; see ``statistics.over_seeds``."""
        return over_seeds(self.values, self.keys)

    @cached_property
    def differences(self) -> pd.DataFrame:
        """Paired differences to the baseline; see ``statistics.differences``."""
        return differences(self.values, self.keys, self.baseline)

    @cached_property
    def verdicts(self) -> list[Verdict]:
        """Ours beside the paper's numbers; see ``paper.beside_the_paper``."""
        return beside_the_paper(self.runs)

    @property
    def paper(self) -> pd.DataFrame:
        """The verdicts as a frame, a row for each published number."""
        return pd.DataFrame(
            [
                {
                    "experiment": each.cell.experiment,
                    "table": each.cell.table,
                    "metric": each.cell.metric,
                    "statistic": each.cell.statistic,
                    "method": each.cell.method,
                    "overrides": " ".join(each.cell.overrides),
                    "published": each.cell.published,
                    "published_spread": each.cell.spread,
                    "ours": each.cell.mean,
                    "seeds": len(each.cell.ours),
                    "published_gain": each.published_gain,
                    "gain": None if each.gain is None else each.gain.mean,
                    "half_width": None if each.gain is None else each.gain.half_width,
                    "verdict": each.words,
                    "differs": " ".join(each.cell.differs),
                    "command": each.cell.command,
                }
                for each in self.verdicts
            ]
        )

    def tables(self) -> list[Table]:
        """Every table of the report, in order."""
        if not self.runs:
            return []
        together = [key for key in self.keys if key not in dict(self.baseline)]
        together = together if self.baseline else []
        found = [results_table(self.results, self.keys, self.statistic, together)]
        if not self.differences.empty:
            found.append(self._difference_table())
        return [*found, *paper_tables(self.verdicts), self._runs_table()]

    def _difference_table(self) -> Table:
        """Paired differences to the baseline with their 95 % intervals."""
        frame = self.differences
        frame = frame[frame["statistic"] == self.statistic]
        metrics = order_metrics(list(frame["metric"].unique()))
        rows = []
        for label, own in frame.groupby(self.keys, sort=False):
            cells = {row["metric"]: row for _, row in own.iterrows()}
            pairs = str(max(int(row["pairs"]) for row in cells.values()))
            rows.append([*map(str, label), pairs, *(_difference(cells, m) for m in metrics)])
        title = f"Difference to {text(self.baseline)}"
        notes = ["Mean of the differences of runs with the same seed ± half of its 95 % interval."]
        return Table(title, [*self.keys, "n", *metrics], rows, notes=notes, keys=len(self.keys))

    def _runs_table(self) -> Table:
        """Which runs there are, how far they came, and how long they took."""
        rows = []
        for run, label in zip(self.runs, self.labels, strict=True):
            seconds = "" if run.summary is None else f"{run.summary['wall_time_s']:.0f}"
            rounds = f"{len(run.history)} of {run.config['rounds']}"
            rows.append([text(label), str(run.seed), rounds, seconds, str(run.folder)])
        return Table("Runs", ["run", "seed", "rounds", "seconds", "folder"], rows)


def report(
    paths: str | Path | Iterable[str | Path],
    baseline: str | None = None,
    targets: Sequence[float] = (),
    statistic: str = "final",
) -> Report:
    """Read runs and compare them.

    Args:
        paths: folders of runs, of sweeps, or above them.
        baseline: overrides that make a row a baseline, such as ``algorithm=fedavg``.
        targets: global accuracies to which rounds, bytes and seconds are counted.
        statistic: what to show: ``final``, ``best``, ``mean_last5`` or ``at_best_validation``.

    Raises:
        InputError: no run could be read, or no run has the baseline's values.
    """
    given = [paths] if isinstance(paths, str | Path) else paths
    runs, problems = read_runs(map(Path, given))
    if not runs:
        raise InputError("; ".join(problems) or "no folder given")
    pairs = tuple(_split(each) for each in baseline.split()) if baseline else ()
    made = Report(runs, problems, pairs, tuple(targets), statistic)
    if pairs and not any(set(pairs) <= set(label) for label in made.labels):
        known = ", ".join(dict.fromkeys(map(text, made.labels)))
        raise InputError(f"baseline={baseline}: no run has it; there are: {known}")
    return made


def _split(override: str) -> tuple[str, str]:
    return override_key(override), override.partition("=")[2]


def _difference(cells: dict[str, pd.Series], metric: str) -> str:
    if metric not in cells:
        return ""
    row = cells[metric]
    text = signed(row["difference"], metric)
    return f"{text} ± {row['half_width']:.4f}" if row["pairs"] > 1 else text
