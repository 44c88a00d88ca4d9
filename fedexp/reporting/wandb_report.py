"""The report as a page in W&B (Weights & Biases), with panels that plot the runs stored there.

Needs ``wandb-workspaces``, which ``pip install 'fedexp[wandb-report]'`` installs.
"""

from __future__ import annotations

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
"""Heading -> prefixes of its metrics, which are plotted over rounds, a panel for each."""


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
    panels = {
        heading: [line_plot(m, title=m) for m in report.round_metrics if m.startswith(begin)]
        for heading, begin in _SECTIONS.items()
    }
    if keys := pictures(report.runs):
        gallery = v2.MediaBrowser(media_keys=keys, num_columns=3)
        panels["Heatmaps and other pictures"] = [gallery]
    for heading, found in panels.items():
        if not found:
            continue
        runs = v2.Runset(  # without project: runs of the page's project
            name=text(tuple((key, "*") for key in report.keys)),
            filters=[expr.Metric("ID").isin([run.wandb_id for run in report.runs])],
            groupby=grouping(report),
        )
        blocks += [v2.H2(heading), v2.PanelGrid(runsets=[runs], panels=found)]
    page = {"project": project, "entity": entity, "title": title(report)}
    return v2.Report(**page, blocks=blocks, width="fluid")
