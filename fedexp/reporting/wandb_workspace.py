"""A view in the workspace of a W&B project: a few sections to look at, the others folded away.

Needs ``wandb-workspaces``, which ``pip install 'fedexp[wandb-report]'`` installs.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import ceil
from typing import Any

from fedexp.reporting.marks import direction
from fedexp.reporting.report import Report
from fedexp.reporting.wandb_pages import grouping, package, pictures, saved, title
from fedexp.state.run_folder import METRICS
from fedexp.tracking.jsonl import PER_CLASS

_OPEN = ("heatmap", "sampler")
"""The chapters with an open section."""

_BYTES = {
    "cost/upload_bytes": "bytes to the server",
    "cost/download_bytes": "bytes to clients",
}
_SECONDS = {"wall_time_s": "seconds of the run"}
"""Cost -> its description. W&B's summary of a run has the seconds, and the total of the bytes."""

_CLOCK = "clock/seconds"
_COLUMNS, _MOST_ROWS = 3, 3
_LINES = 10
"""W&B's own limit of lines in a panel; a view of more configurations has a higher one."""


@dataclass(frozen=True)
class Facts:
    """What the view shows of a report's runs.

    Attributes:
        report: the report.
    """

    report: Report

    @cached_property
    def headlines(self) -> list[str]:
        """The metrics in the tables of the report, then the other headlines that were measured."""
        found = [*self.report.curve_metrics, *self.report.better]
        return [name for name in dict.fromkeys(found) if name in self.report.round_metrics]

    @cached_property
    def pictures(self) -> list[str]:
        """The pictures of the runs, as keys in W&B."""
        return pictures(self.report.runs)

    @property
    def has_classes(self) -> bool:
        """Whether a run measured the accuracy of each class."""
        paths = (run.folder / METRICS for run in self.report.runs)
        return any(PER_CLASS.encode() in path.read_bytes() for path in paths)

    @cached_property
    def summarized(self) -> list[str]:
        """The headlines with statistics in the runs' summaries; the first one orders the runs."""
        return [name for name in self.headlines if name in self.report.better]

    def statistic(self, metric: str) -> str:
        """The report's statistic of a headline, as a key in W&B's summary of a run."""
        return f"{metric}/{self.report.statistic}"

    @cached_property
    def chapters(self) -> list[str]:
        """The beginnings of the names of metrics and pictures, such as ``geometry``."""
        names = (*self.report.round_metrics, *self.pictures)
        return sorted(set(map(_chapter, names)))


def build(report: Report, entity: str, project: str) -> Any:
    """Build the view without saving it.

    Returns:
        A ``wandb_workspaces.workspaces.Workspace``.

    Raises:
        InputError: ``wandb-workspaces`` is missing.
    """
    ws = package("workspaces")
    facts = Facts(report)
    return ws.Workspace(
        entity=entity,
        project=project,
        name=title(report),
        sections=_sections(facts),
        settings=ws.WorkspaceSettings(
            x_axis="round", max_runs=max(_LINES, len(report.configurations))
        ),
        runset_settings=_runs(facts),
    )


def save(report: Report, entity: str, project: str) -> str:
    """Save the view in the workspace of a W&B project; returns its address.

    Raises:
        InputError: ``wandb-workspaces``, a login or the project is missing, or W&B cannot be
            reached.
    """
    return saved("--workspace", build, report, entity, project, should_exist=True)


def _sections(facts: Facts) -> list[Any]:
    panels = _Panels(facts)
    opened = {
        "Headlines": panels.lines(facts.headlines),
        "Accuracy of each class": panels.classes() if facts.has_classes else [],
        "Heatmaps": panels.chapter("heatmap"),
        "Cost against accuracy": panels.costs(),
        "Client sampling": panels.chapter("sampler"),
    }
    folded = {name: panels.chapter(name) for name in facts.chapters if name not in _OPEN}
    return [
        _section(name, found, is_open)
        for sections, is_open in ((opened, True), (folded, False))
        for name, found in sections.items()
        if found
    ]


def _chapter(name: str) -> str:
    """The beginning of a name such as ``geometry/classifier_angle``; all of ``fairness``."""
    return name.partition("/")[0]


def _section(name: str, panels: Sequence[Any], is_open: bool) -> Any:
    ws = package("workspaces")
    rows = min(_MOST_ROWS, ceil(len(panels) / _COLUMNS))
    layout = ws.SectionLayoutSettings(columns=_COLUMNS, rows=rows)
    return ws.Section(name=name, panels=list(panels), is_open=is_open, layout_settings=layout)


def _runs(facts: Facts) -> Any:
    """The report's runs in groups, the best first, with the statistics of the tables as columns."""
    ws, expr = package("workspaces"), package("expr")
    report = facts.report
    columns = [name for name in report.metrics if name in facts.summarized]
    order = [
        expr.Ordering(expr.Summary(facts.statistic(name)), ascending=report.better[name] == "lower")
        for name in facts.summarized[:1]
    ]
    return ws.RunsetSettings(
        filters=[expr.Metric("ID").isin([run.wandb_id for run in report.runs])],
        groupby=[expr.Config(key.removeprefix("config.")) for key in grouping(report)],
        order=order,
        pinned_columns=[f"summary:{facts.statistic(name)}" for name in columns],
    )


class _Panels:
    """Makes panels."""

    def __init__(self, facts: Facts) -> None:
        self._facts, self._v2 = facts, package("reports.v2")

    def chapter(self, name: str) -> list[Any]:
        """The panels of a chapter's metrics that are no headlines, then of its pictures."""
        facts = self._facts
        metrics = [each for each in facts.report.round_metrics if _chapter(each) == name]
        pictures = [each for each in facts.pictures if _chapter(each) == name]
        rest = [each for each in metrics if each not in facts.headlines]
        return [*self.lines(rest), *self.pictures(pictures)]

    def lines(self, metrics: Iterable[str], x: str = "round") -> list[Any]:
        """A panel for each metric: the mean over the runs of a group, and their deviation."""
        return [
            self._v2.LinePlot(
                title=self._title(metric),
                x=x,
                y=[metric],
                groupby_aggfunc="mean",
                groupby_rangefunc="stddev",
            )
            for metric in metrics
        ]

    def pictures(self, keys: Iterable[str]) -> list[Any]:
        """A panel for each picture, with the runs side by side and a slider over rounds."""
        return [
            self._v2.MediaBrowser(title=key, media_keys=[key], gallery_axis="run") for key in keys
        ]

    def classes(self) -> list[Any]:
        """The accuracies of the classes after the last round, as bars and as a table."""
        bars = self._v2.CustomChart(
            query={"summaryTable": {"tableKey": PER_CLASS}},
            chart_name="wandb/bar/v0",
            chart_fields={"label": "class", "value": "accuracy"},
            chart_strings={"title": f"{PER_CLASS} (higher is better)"},
        )
        return [bars, self._v2.WeavePanelSummaryTable(table_name=PER_CLASS)]

    def costs(self) -> list[Any]:
        """The first headline against each cost, and its curve over simulated time."""
        if not self._facts.summarized:
            return []
        metric, known = self._facts.summarized[0], self._facts.report.round_metrics
        totals = {f"{cost}/total": name for cost, name in _BYTES.items() if cost in known}
        points = [
            self._v2.ScatterPlot(
                title=f"{metric} against {name}",
                x=self._v2.SummaryMetric(cost),
                y=self._v2.SummaryMetric(self._facts.statistic(metric)),
            )
            for cost, name in (totals | _SECONDS).items()
        ]
        return points + (self.lines([metric], _CLOCK) if _CLOCK in known else [])

    def _title(self, metric: str) -> str:
        better = direction(metric, self._facts.report.directions)
        return f"{metric} ({better} is better)" if better else metric
