"""What the pages that a report saves in W&B share: packages, facts about the runs, and saving."""

from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any

from fedexp.errors import InputError, first_line
from fedexp.reporting.report import Report
from fedexp.reporting.runs import Run
from fedexp.tracking.figure_files import saved_figures
from fedexp.tracking.wandb_access import check_access

_LONGEST_TITLE = 128


def package(name: str) -> Any:
    """A module of ``wandb-workspaces``. Raises InputError if the package is missing."""
    try:
        return import_module(f"wandb_workspaces.{name}")
    except ImportError as error:
        advice = "pip install 'fedexp[wandb-report]'"
        raise InputError(f"needs wandb-workspaces; {advice}") from error


def title(report: Report) -> str:
    """The title of a page: the keys in which the runs differ."""
    return f"fedexp: {' '.join(report.keys) or 'runs'}"[:_LONGEST_TITLE]


def grouping(report: Report) -> list[str]:
    """The keys in which the runs differ, named as in W&B, such as ``config.choices.algorithm``.

    Runs that differ only in the seed are one group, by their algorithm.
    """
    groups = {key for run in report.runs for key in run.choices}
    keys = report.keys or ["algorithm"]
    return [f"config.choices.{k}" if k in groups else f"config.{k}" for k in keys]


def pictures(runs: Sequence[Run]) -> list[str]:
    """The pictures in the runs' folders, as keys in W&B such as ``sampler/times_chosen``."""
    rounds = (names for run in runs for names in saved_figures(run.folder).values())
    return sorted(set().union(*rounds))


def line_plot(metric: str, title: str, x: str = "round") -> Any:
    """A panel with a metric: the mean over the runs of a group, and their deviation as a band."""
    plot = package("reports.v2").LinePlot
    return plot(title=title, x=x, y=[metric], groupby_aggfunc="mean", groupby_rangefunc="stddev")


def saved(
    option: str,
    build: Callable[[Report, str, str], Any],
    report: Report,
    entity: str,
    project: str,
    *,
    should_exist: bool,
) -> str:
    """Build a page and save it in a W&B project; returns its address.

    Args:
        option: the option of the command line, for the error.
        build: makes the page, an object of ``wandb-workspaces``, of report, entity and project.
        report: the report.
        entity: the W&B user or team.
        project: the W&B project.
        should_exist: whether the project must exist already.

    Raises:
        InputError: package, server, login or project is missing, or the server refuses the page.
    """
    try:
        page = build(report, entity, project)
        check_access(entity, project, should_exist)
        return str(page.save().url)
    except InputError as error:
        raise InputError(f"{option} {entity}/{project}: {error}") from error
    except Exception as error:  # from several packages, whose errors have no common class
        raise InputError(f"{option} {entity}/{project}: not saved ({first_line(error)})") from error
