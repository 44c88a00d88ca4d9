"""A run's output on the terminal: a progress bar, and finally a table or a line of results."""

import math
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich import progress as bars
from rich.console import Console
from rich.filesize import decimal
from rich.table import Table

from fedexp.drawing.texts import printable
from fedexp.tracking.learned_nothing import LEARNED_NOTHING
from fedexp.tracking.tracker import Record, RunInfo, Tracker

_SHOWN = {
    "global/accuracy": "accuracy",
    "global/fewshot_accuracy": "few-shot accuracy",
    "personal/accuracy_local": "personal",
}


class Progress(Tracker):
    """A progress bar with the round, the elapsed and remaining time, and the latest accuracies.

    The bar is drawn only if standard error is a terminal. In a sweep there is no bar, because the
    runs would overwrite each other's bars.
    """

    def __init__(self, run: RunInfo) -> None:
        console = Console(stderr=True)
        self._latest: dict[str, float] = {}
        self._bar = bars.Progress(
            bars.TextColumn("round"),
            bars.MofNCompleteColumn(),
            bars.BarColumn(bar_width=None),
            bars.TimeElapsedColumn(),
            bars.TextColumn("{task.fields[latest]}"),
            bars.TimeRemainingColumn(),
            bars.TextColumn("left"),
            console=console,
            expand=True,
            disable=run.sweep is not None or not console.is_terminal,
            speed_estimate_period=math.inf,  # the default of 30 s is too short for long rounds
        )
        self._task = self._bar.add_task(
            "rounds", total=run.rounds, completed=run.rounds_done, latest=""
        )
        self._bar.start()

    def log(self, record: Record) -> None:
        """Move the bar, and show the latest measured value of each accuracy."""
        self._latest |= {name: record.metrics[name] for name in _SHOWN if name in record.metrics}
        self._bar.update(self._task, completed=record.round, latest=_accuracies(self._latest))

    def finish(self, summary: Mapping[str, Any] | None) -> None:
        """Stop drawing; the bar stays on the terminal."""
        self._bar.stop()


def print_report(
    summary: Mapping[str, Any],
    folder: Path,
    console: Console,
    *,
    brief: bool = False,
    objective: str | None = None,
) -> None:
    """Print a run's results, warnings and folder: a table and lines, or one line if ``brief``.

    Runs of a sweep print one line. In a search for good settings, ``objective`` is the only metric
    in the line, so that nobody chooses settings by the test split. If ``objective`` is None, the
    line has the accuracies.
    """
    if brief:
        finals = {name: values["final"] for name, values in summary["metrics"].items()}
        of_search = f"{objective} {finals.get(objective or '', math.nan):.4g}"
        parts = [
            " ".join(summary["overrides"]),
            of_search if objective else _accuracies(finals),
            f"{summary['wall_time_s']:.0f} s",
            _doubts(summary.get("warnings", ())),
        ]
        line = printable(" · ".join(part for part in [*parts, str(folder)] if part))
        console.print(line, soft_wrap=True, highlight=False, markup=False)
        return
    console.print(final_table(summary))
    lines = [f"WARNING {warning}" for warning in summary.get("warnings", ())]
    lines.append(f"Everything is in {folder}")
    if advice := how_to_upload(folder, "wandb/offline-run-*"):
        lines.append(advice)
    for line in lines:
        console.print(printable(line), soft_wrap=True, highlight=False, markup=False)


def _doubts(warnings: Sequence[str]) -> str:
    """A run's warnings in a few words, for one line; empty without warnings."""
    if any(each.startswith(LEARNED_NOTHING) for each in warnings):
        return "learned nothing"
    return "see its warnings" if warnings else ""


def how_to_upload(folder: Path, pattern: str) -> str | None:
    """Advice with the command that uploads a folder's offline W&B records; None without records.

    Records that are or were being uploaded do not count: the tracker reports on them.
    """
    if not any(next(record.glob("*.sync*"), None) is None for record in folder.glob(pattern)):
        return None
    return f"Offline in W&B; to upload: wandb sync {shlex.quote(str(folder))}/{pattern}"


def final_table(summary: Mapping[str, Any]) -> Table:
    """A table with the final, best and recent value of each headline; the caption has the costs.

    For ``rounds_to/<target>`` the only value is the number of a round. If an accuracy was measured
    on a subset of the test split, the standard error of the accuracy follows after ±.
    """
    ways = {"down": "cost/download_bytes", "up": "cost/upload_bytes"}
    total = summary["total"]
    traffic = "".join(f", {decimal(total[n])} {way}" for way, n in ways.items() if n in total)
    rounds = f"{summary['rounds']} round{'' if summary['rounds'] == 1 else 's'}"
    effort = f"{rounds}, {summary['wall_time_s']:.1f} s on {summary['device']}"
    table = Table(caption=f"{effort}{traffic}")
    table.add_column("metric", no_wrap=True)
    columns = {"final": "final", "best": "best", "mean_last5": "mean of last 5 rounds"}
    if "best_round" in summary:
        columns["at_best_validation"] = f"round {summary['best_round']}, best in validation"
    for heading in columns.values():
        table.add_column(heading, justify="right")
    for name, values in summary["metrics"].items():
        final, *others = (_cell(values.get(statistic)) for statistic in columns)
        if "standard_error" in values:
            final += f" ± {_cell(values['standard_error'])}"
        table.add_row(name, final, *others)
    return table


def _cell(value: float | None) -> str:
    """The text of a cell: a measurement with four decimals, or a round; empty for None."""
    if value is None:
        return ""
    return str(value) if isinstance(value, int) else f"{value:.4f}"


def _accuracies(values: Mapping[str, float]) -> str:
    """Text such as ``accuracy 0.912 · personal 0.870``."""
    return " · ".join(
        f"{label} {values[name]:.3f}" for name, label in _SHOWN.items() if name in values
    )
