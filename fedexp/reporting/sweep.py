"""The table at the end of a sweep: the report's short form."""

from collections.abc import Sequence
from pathlib import Path

import pandas as pd
from rich.console import Console

from fedexp.errors import InputError
from fedexp.reporting.csv import csv
from fedexp.reporting.labels import text
from fedexp.reporting.report import Report
from fedexp.reporting.runs import Run, read_run, run_folders
from fedexp.reporting.statistics import COSTS_TO, Measures
from fedexp.reporting.table import results_table
from fedexp.reporting.terminal import print_table
from fedexp.state import failed_jobs
from fedexp.tracking.progress import how_to_upload

FILE_NAME = "sweep.csv"

FAILED = 1
UNFINISHED = 75
"""The exit code of a sweep that has more to do: the system's "temporary failure, try again"."""


def report_sweep(folder: Path, log_name: str, objective: str | None = None) -> int:
    """Print the tables over the jobs that did not fail; if there are any, write ``sweep.csv``.

    Args:
        folder: the sweep's folder.
        log_name: the name of a job's log file, to which the line about a failed job points.
        objective: for a search, the only metric in the printed table; None for the default of
            ``Report.metrics``.

    Returns:
        The sweep's exit code, see ``exit_code``.
    """
    runs, failed = jobs(folder)
    console = Console(highlight=False, markup=False, soft_wrap=True)
    if runs:
        try:
            _report(runs, folder, objective, console)
        except InputError as error:  # without a table, the exit code still counts
            console.print(f"{folder}: no table, as {error}")
    if advice := how_to_upload(folder, "*/wandb/offline-run-*"):
        console.print(advice)
    return exit_code(runs, failed, log_name)


def _report(runs: Sequence[Run], folder: Path, objective: str | None, console: Console) -> None:
    made = Report.of(runs, [], None, Measures())
    write_table(made, folder / FILE_NAME)
    shown = [objective] if objective else made.metrics
    print_table(results_table(made.results, made.keys, shown), console)
    for table in made.further_tables():
        print_table(table, console)
    for problem in made.problems:
        console.print(problem)
    console.print(f"Also in {folder / FILE_NAME}; fedexp-report {folder} --to DIR draws it")


def exit_code(
    runs: Sequence[Run], failed: Sequence[Path], log_name: str, may_fail: bool = False
) -> int:
    """Name the failed jobs, and return the sweep's exit code.

    It is ``FAILED`` if a job failed, unless jobs ``may_fail``; else ``UNFINISHED`` if a job stopped
    at a time limit or a signal; else 0.
    """
    for job in failed:
        print(f"Failed: {job}; {log_name} there says why")
    if failed and not may_fail:
        return FAILED
    return 0 if all(run.finished for run in runs) else UNFINISHED


def jobs(folder: Path) -> tuple[list[Run], list[Path]]:
    """The runs of a sweep, and the folders of its failed jobs, in natural order.

    A run that stopped at a time limit or a signal is a run, too; it is not ``finished``. The folder
    of a failed job may hold a run of an earlier start, which does not count.
    """
    runs, failed = [], []
    recorded = failed_jobs.take(folder)
    for job in run_folders(folder)[0]:
        if job in recorded:
            failed.append(job)
            continue
        try:
            run = read_run(job)
        except InputError:
            failed.append(job)
            continue
        if run.summary is None:
            failed.append(job)
        else:
            runs.append(run)
    return runs, failed


def write_table(report: Report, path: Path) -> None:
    """Write the final values, a row for each configuration.

    The columns are ``configuration``, the keys that were varied or searched, ``seeds`` (finished
    runs), and for each headline metric ``<metric>/mean`` and ``<metric>/std`` (n - 1). Costs of
    reaching a target also have ``<metric>/reached``, the number of seeds that reached it; the
    others count with their whole run.
    """
    rows: dict[str, dict[str, str | float]] = {}
    final = report.results[report.results["statistic"] == "final"]
    for row in final.to_dict("records"):
        label = tuple((key, row[key]) for key in report.keys)
        own = rows.setdefault(text(label), {**dict(label), "seeds": row["seeds"]})
        metric = row["metric"]
        own |= {f"{metric}/mean": row["mean"], f"{metric}/std": row["std"]}
        if metric.startswith(COSTS_TO):
            own[f"{metric}/reached"] = row["n"] - row["at_bound"]
    table = pd.DataFrame.from_dict(rows, orient="index").rename_axis("configuration")
    reached = [name for name in table.columns if name.endswith("/reached")]
    table[reached] = table[reached].fillna(0).astype(int)
    path.write_bytes(csv(table.reset_index()))
