"""Writes the results, the page and the pictures of a contest."""

from io import BytesIO
from pathlib import Path

import pandas as pd
from matplotlib.figure import Figure

from fedexp.reporting.csv import csv
from fedexp.reporting.files import write_contents
from fedexp.reporting.leaderboard.figures import gains_map, ranks_by_budget
from fedexp.reporting.leaderboard.page import METRICS, budgets_of, cells_of, page
from fedexp.reporting.leaderboard.results import chosen
from fedexp.reporting.leaderboard.standings import standings
from fedexp.reporting.markdown import markdown
from fedexp.reporting.table import Table

RESULTS, PAGE = "leaderboard.csv", "leaderboard.md"


def write(results: pd.DataFrame, folder: Path, entries: Table | None = None) -> list[Path]:
    """Write ``leaderboard.csv``, ``leaderboard.md`` and the pictures; return their paths.

    ``entries`` is a table of the entries from outside, if there are any. Raises InputError if the
    folder cannot be written.
    """
    drawn = pictures(results)
    names = [f"![{title}]({name}.png)" for name, title, _ in drawn]
    told = [] if entries is None else [markdown(entries)]
    text = "\n\n".join(["# Leaderboard", *told, page(results), *names])
    contents = {RESULTS: csv(results), PAGE: f"{text}\n".encode()}
    contents |= {f"{name}.png": _png(figure) for name, _, figure in drawn}
    write_contents(contents, folder)
    return [folder / name for name in contents]


def pictures(results: pd.DataFrame) -> list[tuple[str, str, Figure]]:
    """(Name, title, figure) of each picture; without a gain there is no picture of gains."""
    cells, found = cells_of(results), []
    for metric in METRICS:
        frames = {b: standings(chosen(results, b), metric) for b in budgets_of(results)}
        name = metric.replace(" ", "_")
        best = frames[max(frames)]
        if best["gain"].notna().any():
            gains = gains_map(best, cells, metric)
            found.append((f"gains_{name}", f"Gains over FedAvg, {metric}", gains))
        if len(frames) > 1 and not best.empty:
            ranks = ranks_by_budget(frames)
            found.append((f"ranks_{name}", f"Mean rank by the number of trials, {metric}", ranks))
    return found


def read_csv(path: Path) -> pd.DataFrame:
    """Read the results from a ``leaderboard.csv`` that ``write`` wrote.

    Columns that earlier versions did not write are empty.
    """
    words = ["setting", "objective", "control", "budgets"]
    table = pd.read_csv(path, dtype=dict.fromkeys(words, str))
    missing = [name for name in words if name not in table]
    return table.assign(**dict.fromkeys(missing, "")).fillna(dict.fromkeys(words, ""))


def _png(figure: Figure) -> bytes:
    buffer = BytesIO()
    figure.savefig(buffer, format="png", dpi=110)
    return buffer.getvalue()
