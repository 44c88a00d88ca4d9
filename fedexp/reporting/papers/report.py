"""A report that compares runs with the numbers that their papers published."""

from collections.abc import Iterable, Set
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pandas as pd

from fedexp.reporting.drawing import Drawing
from fedexp.reporting.papers.personal import personal_table
from fedexp.reporting.papers.published import published_by
from fedexp.reporting.papers.table import paper_tables
from fedexp.reporting.papers.verdicts import Verdict, beside_the_paper
from fedexp.reporting.report import Report
from fedexp.reporting.runs import Run
from fedexp.reporting.table import Table


@dataclass(frozen=True)
class PaperReport(Report):
    """A report that compares our numbers with the published numbers.

    If curves are smoothed, our rounds to a target are counted on the smoothed curves.
    """

    @staticmethod
    def check_run(run: Run) -> None:
        """Raise InputError if a row of the run's ``paper:`` list is wrong."""
        published_by(run)

    @cached_property
    def verdicts(self) -> list[Verdict]:
        """Each published number with our number and a verdict; see ``beside_the_paper``."""
        return beside_the_paper(self.runs, self.measures.smooth)

    @property
    def paper(self) -> pd.DataFrame:
        """A data frame of the verdicts, a row for each published number."""
        return pd.DataFrame(map(_row, self.verdicts))

    @property
    def personal_metrics(self) -> Set[str]:
        """All metrics with published numbers; ``Report`` shows the personal accuracies of these."""
        return {row.metric for run in self.runs for row in published_by(run)}

    @property
    def frames(self) -> dict[str, pd.DataFrame]:
        """File name without suffix -> data frame of numbers."""
        return super().frames | {"paper": self.paper}

    def further_tables(self) -> list[Table]:
        """The tables of ``Report``, and those that compare our numbers with published numbers.

        There is one table for each experiment and column of a published table. If a paper reports a
        personal metric, the last table defines each paper's personal accuracy.
        """
        is_personal = any(name.startswith("personal/") for name in self.personal_metrics)
        ours = [*super().further_tables(), *paper_tables(self.verdicts)]
        return [*ours, *([personal_table()] if is_personal else [])]

    def further_drawings(self) -> Iterable[Drawing]:
        """The pictures of ``Report``, and bar charts of our values and the published values."""
        from fedexp.reporting.papers.bars import (
            bar_drawings,  # reports without pictures need no matplotlib
        )

        return [*super().further_drawings(), *bar_drawings(self.verdicts)]


def _row(verdict: Verdict) -> dict[str, Any]:
    cell, gain, recent = verdict.cell, verdict.gain, verdict.recent_gain
    names = ("experiment", "table", "metric", "statistic", "method")
    return {
        **{name: getattr(cell, name) for name in names},
        "overrides": " ".join(cell.overrides),
        "published": cell.published,
        "published_spread": cell.spread,
        "ours": cell.mean,
        "seeds": len(cell.ours),
        "seeds_run": cell.seeds,
        "at_bound": cell.at_bound,
        "published_gain": verdict.published_gain,
        "gain": None if gain is None else gain.mean,
        "half_width": None if gain is None else gain.half_width,
        "recent_gain": None if recent is None else recent.mean,
        "recent_half_width": None if recent is None else recent.half_width,
        "verdict": verdict.words,
        "could_show": verdict.smallest_gain,
        "varies": cell.varies,
        "differs": " ".join(cell.differs),
        "command": cell.command,
    }
