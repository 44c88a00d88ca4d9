"""The tables of the page "Which method for which skew", from the leaderboard's runs."""

import math
from collections.abc import Iterator
from typing import Any

import pandas as pd

from fedexp.reporting.leaderboard.files import RESULTS, read_csv
from fedexp.reporting.leaderboard.page import cells_of
from fedexp.reporting.leaderboard.results import GLOBAL, PERSONAL, best
from fedexp.reporting.leaderboard.standings import BASELINE, standings
from generate.results import RESULTS as STORED
from generate.results import ROOT
from generate.text import sentence, table
from generate.yaml_comments import read

MOST = 5
"""Largest number of methods in a table."""
CHEAP = 2.0
"""A method is cheap if it takes at most this many times FedAvg's bytes and seconds."""
SURE = 2
"""Signs of a gain that counts: it survives the correction of Benjamini and Hochberg."""
_CELLS = ROOT / "conf" / "experiment" / "leaderboard"
_QUESTIONS = {GLOBAL: "One model for all", PERSONAL: "A model for each client"}


def which_method(name: str) -> str:
    """For each skew of the leaderboard ``name``, the methods that are shown to be ahead."""
    results = read_csv(STORED / f"leaderboard_{name}" / RESULTS)
    finals = best(results)
    ahead = {metric: _ahead(finals, metric) for metric in _QUESTIONS}
    costs = _costs(finals)
    sections = (_section(cell, ahead, costs) for cell in cells_of(results))
    return "\n\n".join(sections) + "\n"


def _ahead(finals: pd.DataFrame, metric: str) -> pd.DataFrame:
    """The standings of the baseline and of the methods whose gains are sure, best gain first."""
    frame = standings(finals, metric)
    kept = (frame["signs"].str.count(r"\+") >= SURE) | (frame["method"] == BASELINE)
    return frame[kept].sort_values("mean", ascending=False)


def _section(cell: str, ahead: dict[str, pd.DataFrame], costs: pd.DataFrame) -> str:
    parts = [f"## {_title(cell)}"]
    for metric, question in _QUESTIONS.items():
        rows = ahead[metric][ahead[metric]["cell"] == cell].to_dict("records")
        parts.append("\n".join(_answer(question, rows, costs)))
    return "\n\n".join(parts)


def _title(cell: str) -> str:
    """What the cell's file says of its skew, with a capital."""
    skew = sentence(read(_CELLS / f"{cell}.yaml").header.partition(": ")[2])
    return skew[0].upper() + skew[1:]


def _costs(finals: pd.DataFrame) -> pd.DataFrame:
    """Megabytes and seconds of each method over the baseline's: the median over the cells."""
    means = finals.groupby(["cell", "method"])[["megabytes", "seconds"]].mean()
    ratios = means / means.xs(BASELINE, level="method")
    return ratios.groupby("method").median()


def _answer(question: str, rows: list[dict[Any, Any]], costs: pd.DataFrame) -> Iterator[str]:
    """A sentence, and the table of the best methods."""
    (baseline,) = (row for row in rows if row["method"] == BASELINE)
    better = [row for row in rows if row is not baseline]
    if not better:
        yield (
            f"**{question}:** no method is shown to be ahead of `{BASELINE}` "
            f"({baseline['mean']:.3f}). Stay with it."
        )
        return
    cheap = [row["method"] for row in better if (costs.loc[row["method"]] <= CHEAP).all()]
    first = f"try `{cheap[0]}` first" if cheap else "no cheap method is ahead"
    count = f"{len(better)} methods are" if len(better) > 1 else "one method is"
    yield f"**{question}:** {first}; {count} ahead of `{BASELINE}` ({baseline['mean']:.3f}).\n"
    names = ("method", "chosen setting", "accuracy", "gain", "signs", "bytes", "seconds")
    yield table(names, (_row(row, costs) for row in better[:MOST]), classes="numbers")


def _row(row: dict[Any, Any], costs: pd.DataFrame) -> list[str]:
    gain, cost = row["gain"], costs.loc[row["method"]]
    width = "" if math.isnan(gain.half_width) else f" ± {gain.half_width:.3f}"
    accuracy = f"{row['mean']:.3f}"
    own = [f"`{row['method']}`", f"`{row['setting']}`" if row["setting"] else "preset", accuracy]
    ratios = [f"{cost['megabytes']:.2f}", f"{cost['seconds']:.1f}"]
    return [*own, f"{gain.mean:+.3f}{width}", row["signs"], *ratios]
