"""A view in the workspace of a W&B project: a few sections to look at, the others folded away.

Needs ``wandb-workspaces``, which ``pip install 'fedexp[wandb-report]'`` installs.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import ceil
from typing import Any

from fedexp.reporting.marks import direction
from fedexp.reporting.report import Report
from fedexp.reporting.wandb_pages import grouping, line_plot, package, pictures, title
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


def build(report: Report, entity: str, project: str) -> Any:
    """Build the view without saving it.

    Returns:
        A ``wandb_workspaces.workspaces.Workspace``.

    Raises:
        InputError: ``wandb-workspaces`` is missing.
    """
    ws = package("workspaces")
    view = _View(report)
    return ws.Workspace(
        entity=entity,
        project=project,
        name=title(report),
        sections=view.sections(),
        settings=ws.WorkspaceSettings(
            x_axis="round", max_runs=max(_LINES, len(report.configurations))
        ),
        runset_settings=view.runs(),
    )


def _chapter(name: str) -> str:
    """The beginning of a name such as ``geometry/classifier_angle``; all of ``fairness``."""
    return name.partition("/")[0]


def _section(name: str, panels: Sequence[Any], is_open: bool) -> Any:
    ws = package("workspaces")
    rows = min(_MOST_ROWS, ceil(len(panels) / _COLUMNS))
    layout = ws.SectionLayoutSettings(columns=_COLUMNS, rows=rows)
    return ws.Section(name=name, panels=list(panels), is_open=is_open, layout_settings=layout)


class _View:
    """Makes the sections of the view of a report, and the list of its runs."""

    def __init__(self, report: Report) -> None:
        self._report, self._v2 = report, package("reports.v2")
        self._pictures = pictures(report.runs)
        found = dict.fromkeys([*report.curve_metrics, *report.better])
        # The metrics in the tables of the report, then the other headlines that were measured.
        self._headlines = [name for name in found if name in report.round_metrics]
        # Those with statistics in the runs' summaries; the first one orders the runs.
        self._summarized = [name for name in self._headlines if name in report.better]

    def sections(self) -> list[Any]:
        """The open sections, then a folded one for each other chapter; none is empty."""
        opened = {
            "Headlines": self._lines(self._headlines),
            "Accuracy of each class": self._classes(),
            "Heatmaps": self._panels("heatmap"),
            "Cost against accuracy": self._costs(),
            "Client sampling": self._panels("sampler"),
        }
        chapters = sorted({*map(_chapter, (*self._report.round_metrics, *self._pictures))})
        folded = {name: self._panels(name) for name in chapters if name not in _OPEN}
        return [
            _section(name, found, is_open)
            for sections, is_open in ((opened, True), (folded, False))
            for name, found in sections.items()
            if found
        ]

    def runs(self) -> Any:
        """The runs in groups, the best first, with the statistics of the tables as columns."""
        ws, expr, report = package("workspaces"), package("expr"), self._report
        columns = [name for name in report.metrics if name in self._summarized]
        order = [
            expr.Ordering(
                expr.Summary(self._statistic(name)), ascending=report.better[name] == "lower"
            )
            for name in self._summarized[:1]
        ]
        return ws.RunsetSettings(
            filters=[expr.Metric("ID").isin([run.wandb_id for run in report.runs])],
            groupby=[expr.Config(key.removeprefix("config.")) for key in grouping(report)],
            order=order,
            pinned_columns=[f"summary:{self._statistic(name)}" for name in columns],
        )

    def _statistic(self, metric: str) -> str:
        """The report's statistic of a headline, as a key in W&B's summary of a run."""
        return f"{metric}/{self._report.statistic}"

    def _panels(self, chapter: str) -> list[Any]:
        """The panels of a chapter's metrics that are no headlines, then of its pictures.

        A picture's panel has the runs side by side and a slider over rounds.
        """
        metrics = [each for each in self._report.round_metrics if _chapter(each) == chapter]
        rest = [each for each in metrics if each not in self._headlines]
        galleries = [
            self._v2.MediaBrowser(title=key, media_keys=[key], gallery_axis="run")
            for key in self._pictures
            if _chapter(key) == chapter
        ]
        return [*self._lines(rest), *galleries]

    def _lines(self, metrics: Iterable[str], x: str = "round") -> list[Any]:
        """A panel for each metric, whose title says which direction is better."""
        directions = self._report.directions
        found = {metric: direction(metric, directions) for metric in metrics}
        return [
            line_plot(metric, f"{metric} ({better} is better)" if better else metric, x)
            for metric, better in found.items()
        ]

    def _classes(self) -> list[Any]:
        """The accuracies of the classes after the last round, as bars and as a table."""
        paths = (run.folder / METRICS for run in self._report.runs)
        if not any(PER_CLASS.encode() in path.read_bytes() for path in paths):
            return []
        bars = self._v2.CustomChart(
            query={"summaryTable": {"tableKey": PER_CLASS}},
            chart_name="wandb/bar/v0",
            chart_fields={"label": "class", "value": "accuracy"},
            chart_strings={"title": f"{PER_CLASS} (higher is better)"},
        )
        return [bars, self._v2.WeavePanelSummaryTable(table_name=PER_CLASS)]

    def _costs(self) -> list[Any]:
        """The first headline against each cost, and its curve over simulated time."""
        if not self._summarized:
            return []
        metric, known = self._summarized[0], self._report.round_metrics
        totals = {f"{cost}/total": name for cost, name in _BYTES.items() if cost in known}
        points = [
            self._v2.ScatterPlot(
                title=f"{metric} against {name}",
                x=self._v2.SummaryMetric(cost),
                y=self._v2.SummaryMetric(self._statistic(metric)),
            )
            for cost, name in (totals | _SECONDS).items()
        ]
        return points + (self._lines([metric], _CLOCK) if _CLOCK in known else [])
