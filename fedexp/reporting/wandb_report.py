"""The report as a page in W&B (Weights & Biases), with panels that plot the runs stored there.

Needs ``wandb-workspaces``, which ``pip install 'fedexp[wandb-report]'`` installs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from fedexp.errors import InputError
from fedexp.reporting.labels import text
from fedexp.reporting.markdown import markdown
from fedexp.reporting.report import Report
from fedexp.reporting.runs import Run

_SECTIONS = {
    "Global model": ("global/", "train/"),
    "Personal models": ("personal/",),
    "Geometry and client sampling": ("geometry/", "sampler/"),
    "Cost": ("cost/", "time/"),
}
"""Heading -> prefixes of its metrics."""

_LONGEST_TITLE = 128


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
    measured = sorted({name for run in report.runs for row in run.history for name in row})
    found = [
        Section(title, metrics=[name for name in measured if name.startswith(begin)])
        for title, begin in _SECTIONS.items()
    ]
    found.append(Section("Heatmaps and other pictures", pictures=_pictures(report.runs)))
    return [each for each in found if each.metrics or each.pictures]


def grouping(report: Report) -> list[str]:
    """The keys in which the runs differ, named as in W&B, such as ``config.choices.algorithm``."""
    groups = {key for run in report.runs for key in run.choices}
    return [f"config.choices.{k}" if k in groups else f"config.{k}" for k in report.keys]


def build(report: Report, entity: str, project: str) -> Any:
    """Build the page without saving it: all tables except the list of runs, then W&B's panels.

    Returns:
        A ``wandb_workspaces.reports.v2.Report``.

    Raises:
        InputError: ``wandb-workspaces`` is missing.
    """
    try:
        expr: Any = import_module("wandb_workspaces.expr")
        v2: Any = import_module("wandb_workspaces.reports.v2")
    except ImportError as error:
        raise InputError(
            "--wandb: needs wandb-workspaces; pip install 'fedexp[wandb-report]'"
        ) from error
    *tables, _ = report.tables()
    blocks: list[Any] = [v2.MarkdownBlock(markdown(table)) for table in tables]
    for section in sections(report):
        runs = v2.Runset(  # without project: runs of the page's project
            name=text(tuple((key, "*") for key in report.keys)),
            filters=[expr.Metric("ID").isin([run.wandb_id for run in report.runs])],
            groupby=grouping(report),
        )
        panels: list[Any] = [
            v2.LinePlot(
                title=metric,
                x="round",
                y=[metric],
                groupby_aggfunc="mean",
                groupby_rangefunc="stddev",
            )
            for metric in section.metrics
        ]
        if section.pictures:
            panels.append(v2.MediaBrowser(media_keys=list(section.pictures), num_columns=3))
        blocks += [v2.H2(section.title), v2.PanelGrid(runsets=[runs], panels=panels)]
    title = f"fedexp: {' '.join(report.keys) or 'runs'}"[:_LONGEST_TITLE]
    return v2.Report(project=project, entity=entity, title=title, blocks=blocks, width="fluid")


def save(report: Report, entity: str, project: str) -> str:
    """Save the page in a W&B project; returns its address.

    Raises:
        InputError: ``wandb-workspaces`` or a login is missing, or W&B cannot be reached.
    """
    page = build(report, entity, project)
    try:
        return str(page.save().url)
    except Exception as error:  # from several packages, whose errors have no common class
        reason = str(error).partition("\n")[0] or type(error).__name__
        raise InputError(f"--wandb {entity}/{project}: not saved ({reason})") from error


def _pictures(runs: Sequence[Run]) -> list[str]:
    """The pictures in the runs' folders, as keys in W&B such as ``sampler/times_chosen``."""
    paths = (path for run in runs for path in (run.folder / "figures").glob("*_*.png"))
    return sorted({path.stem.rpartition("_")[0].replace("_", "/", 1) for path in paths})
