"""The tables of the page "Which method for which skew", from the leaderboard's runs."""

import math
from collections.abc import Iterator
from typing import Any

import pandas as pd

from fedexp.reporting.interval import Interval
from fedexp.reporting.leaderboard.files import read_csv
from fedexp.reporting.leaderboard.page import cells_of
from fedexp.reporting.leaderboard.results import GLOBAL, PERSONAL, best
from fedexp.reporting.leaderboard.standings import BASELINE, standings, verdict
from fedexp.reporting.leaderboard.tuning import RESULTS
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
    """For each skew of the leaderboard ``name``, the methods that are shown to be ahead.

    Beside their gains stand those of the leaderboard ``name_fresh``: the same settings with other
    seeds.
    """
    results = read_csv(STORED / f"leaderboard_{name}" / RESULTS)
    finals, fresh = best(results), best(read_csv(STORED / f"leaderboard_{name}_fresh" / RESULTS))
    ahead = {metric: _ahead(finals, fresh, metric) for metric in _QUESTIONS}
    costs = _costs(finals)
    sections = (_section(cell, ahead, costs) for cell in cells_of(results))
    return "\n\n".join(sections) + "\n"


def _ahead(finals: pd.DataFrame, fresh: pd.DataFrame, metric: str) -> pd.DataFrame:
    """The standings of the baseline and of the methods whose gains are sure, best gain first.

    The earlier runs do not say which accuracy a method was tuned for. The fresh ones do: a method
    that was tuned for the personal accuracy is left out of the global one.
    """
    row = ["cell", "method", "setting"]
    again = standings(fresh, metric).set_index(row)
    frame = standings(finals, metric).set_index(row).join(again["gain"].rename("fresh"))
    personal = again.index[~again["comparable"].astype(bool)].unique("method")
    frame = frame[~frame.index.get_level_values("method").isin(personal)].reset_index()
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
    cheap = [row for row in better if (costs.loc[row["method"]] <= CHEAP).all()]
    first = _first(cheap)
    count = f"{len(better)} methods are" if len(better) > 1 else "one method is"
    yield f"**{question}:** {first}; {count} ahead of `{BASELINE}` ({baseline['mean']:.3f}).\n"
    names = ("method", "chosen setting", "accuracy", "gain", "signs", "fresh seeds")
    names += ("bytes", "seconds")
    yield table(names, (_row(row, costs) for row in better[:MOST]), classes="numbers")


def _first(cheap: list[dict[Any, Any]]) -> str:
    """The method to try first: the largest gain that is there again with fresh seeds."""
    if not cheap:
        return "no cheap method is ahead"
    repeated = [row for row in cheap if _is_gain(row["fresh"])]
    again = [row for row in repeated if verdict(row["fresh"]) == "ahead"]
    name = f"try `{(again or cheap)[0]['method']}` first"
    if again:
        return name
    reason = "do not show a gain again" if repeated else "have not run"
    return f"{name}, although fresh seeds {reason}"


def _row(row: dict[Any, Any], costs: pd.DataFrame) -> list[str]:
    accuracy, cost = f"{row['mean']:.3f}", costs.loc[row["method"]]
    own = [f"`{row['method']}`", f"`{row['setting']}`" if row["setting"] else "preset", accuracy]
    ratios = [f"{cost['megabytes']:.2f}", f"{cost['seconds']:.1f}"]
    return [*own, _gain(row["gain"]), row["signs"], _gain(row["fresh"]), *ratios]


def _is_gain(found: Any) -> bool:
    """False for the NaN or None of a method without a pair of runs."""
    return isinstance(found, Interval)


def _gain(gain: Any) -> str:
    if not _is_gain(gain):
        return ""
    width = "" if math.isnan(gain.half_width) else f" ± {gain.half_width:.3f}"
    return f"{gain.mean:+.3f}{width}"
