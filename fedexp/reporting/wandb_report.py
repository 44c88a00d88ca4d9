"""The report as a page in W&B (Weights & Biases), with panels that plot the runs stored there.

Needs ``wandb-workspaces``, which ``pip install 'fedexp[wandb-report]'`` installs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from fedexp.reporting.labels import text
from fedexp.reporting.markdown import markdown
from fedexp.reporting.report import Report
from fedexp.reporting.wandb_pages import grouping, line_plot, package, pictures, title

_SECTIONS = {
    "Global model": ("global/", "train/"),
    "Personal models": ("personal/",),
    "Geometry and client sampling": ("geometry/", "sampler/"),
    "Cost": ("cost/", "time/"),
}
"""Heading -> prefixes of its metrics."""


@dataclass(frozen=True)
class Section:
    """A section of the page: a heading and its panels.

    Attributes:
        title: the heading.
        metrics: the metrics to plot over rounds, a panel for each. The band is the deviation over
            the runs of a group.
        pictures: the pictures in one gallery, as keys in W&B such as ``sampler/times_chosen``.
    """

    title: str
    metrics: Sequence[str] = ()
    pictures: Sequence[str] = ()


def sections(report: Report) -> list[Section]:
    """The sections for the runs' metrics and pictures, without empty ones."""
    found = [
        Section(heading, metrics=[name for name in report.round_metrics if name.startswith(begin)])
        for heading, begin in _SECTIONS.items()
    ]
    found.append(Section("Heatmaps and other pictures", pictures=pictures(report.runs)))
    return [each for each in found if each.metrics or each.pictures]


def build(report: Report, entity: str, project: str) -> Any:
    """Build the page without saving it: all tables except the list of runs, then W&B's panels.

    Returns:
        A ``wandb_workspaces.reports.v2.Report``.

    Raises:
        InputError: ``wandb-workspaces`` is missing.
    """
    expr, v2 = package("expr"), package("reports.v2")
    *tables, _ = report.tables()
    blocks: list[Any] = [v2.MarkdownBlock(markdown(table)) for table in tables]
    for section in sections(report):
        runs = v2.Runset(  # without project: runs of the page's project
            name=text(tuple((key, "*") for key in report.keys)),
            filters=[expr.Metric("ID").isin([run.wandb_id for run in report.runs])],
            groupby=grouping(report),
        )
        panels = [line_plot(metric, title=metric) for metric in section.metrics]
        if section.pictures:
            panels.append(v2.MediaBrowser(media_keys=list(section.pictures), num_columns=3))
        blocks += [v2.H2(section.title), v2.PanelGrid(runsets=[runs], panels=panels)]
    page = {"project": project, "entity": entity, "title": title(report)}
    return v2.Report(**page, blocks=blocks, width="fluid")
