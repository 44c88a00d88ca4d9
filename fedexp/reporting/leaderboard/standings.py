"""Standings of a contest: means, gains over a baseline with intervals, and ranks."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pandas as pd

from fedexp.reporting.families import stars_of
from fedexp.reporting.interval import Interval, paired_difference
from fedexp.reporting.leaderboard.controls import BASELINE
from fedexp.reporting.leaderboard.results import GLOBAL, PERSONAL
from fedexp.reporting.leaderboard.tuning import DIGITS

SIGNS = {"ahead": "+", "behind": "-"}
"""Verdict -> the sign after a number in tables and pictures."""


@dataclass(frozen=True)
class Finals:
    """The final runs of a method in a cell.

    Attributes:
        values: seed -> accuracy.
        setting: the chosen setting.
        objective: the metric that chose it; empty if nothing was tuned.
        control: the method that is this method's control; empty if it has none of its own.
    """

    values: dict[int, float]
    setting: str
    objective: str
    control: str


def standings(finals: pd.DataFrame, metric: str) -> pd.DataFrame:
    """A frame with a row for each cell (experiment) and each method that measured ``metric`` there.

    Args:
        finals: the final runs of one search budget; see ``results.chosen``.
        metric: a column of ``finals`` in which higher values are better.

    Returns:
        The columns are ``cell``, ``method``, ``setting``; ``mean`` and ``std`` over seeds;
        ``seeds``; ``comparable``, see ``comparable``; ``gain``, the ``Interval`` of the paired
        differences to ``BASELINE`` in the cell (None for ``BASELINE`` itself, without pairs, or if
        the method is not comparable); ``signs``, such as ``++``, see ``signs``; and ``rank`` by the
        mean within the cell, beginning with 1. The family that the signs are corrected for is all
        gains of the frame.
    """
    rows = []
    for cell, methods in by_cell(finals, metric):
        for method, own in methods.items():
            other = None if method == BASELINE else methods.get(BASELINE)
            is_fair = other is None or comparable(metric, own, other)
            gain = paired_difference(own.values, other.values) if other and is_fair else None
            scores = pd.Series(own.values)
            row = [scores.mean(), scores.std(), len(scores), is_fair, gain]
            rows.append([cell, method, own.setting, *row])
    names = ["cell", "method", "setting", "mean", "std", "seeds", "comparable", "gain"]
    frame = pd.DataFrame(rows, columns=names)
    frame["signs"] = signs(frame["gain"].tolist())
    frame["rank"] = frame.groupby("cell")["mean"].transform(ranks)
    return frame


def ranks(means: pd.Series) -> pd.Series:
    """The ranks of these means, beginning with 1 for the highest; equal means share their rank."""
    return means.round(DIGITS).rank(ascending=False)


def over_controls(finals: pd.DataFrame, metric: str) -> pd.DataFrame:
    """A frame with a row for each cell and each method that has a control of its own there.

    Returns:
        The columns are ``cell``, ``method``, ``control``; ``gain``, the ``Interval`` of the paired
        differences to the control (None without pairs); and ``signs``, corrected for all gains of
        the frame.
    """
    rows = [
        [cell, method, own.control, paired_difference(own.values, methods[own.control].values)]
        for cell, methods in by_cell(finals, metric)
        for method, own in methods.items()
        if own.control in methods
    ]
    frame = pd.DataFrame(rows, columns=["cell", "method", "control", "gain"])
    return frame.assign(signs=signs(frame["gain"].tolist()))


def by_cell(finals: pd.DataFrame, metric: str) -> Iterator[tuple[str, dict[str, Finals]]]:
    """Each cell, and method -> its final runs there that measured ``metric``."""
    for cell, runs in finals.dropna(subset=[metric]).groupby("cell", sort=False):
        columns = runs[["method", "setting", "objective", "control", "seed", metric]]
        methods: dict[str, Finals] = {}
        for name, *texts, seed, value in columns.itertuples(index=False, name=None):
            methods.setdefault(name, Finals({}, *texts)).values[seed] = value
        yield str(cell), dict(sorted(methods.items()))


def comparable(metric: str, own: Finals, other: Finals) -> bool:
    """Whether a comparison of two methods by an accuracy is fair.

    It is not if the other method was tuned for this accuracy and the own method for another one,
    such as a personalization for ``validation/personal_accuracy``: by the global accuracy it then
    lags behind FedAvg even if it shares FedAvg's global model.
    """
    return _aim(other) != metric or _aim(own) in ("", metric)


def _aim(finals: Finals) -> str:
    """The accuracy for which a method was tuned; empty if nothing was tuned."""
    if not finals.objective:
        return ""
    return PERSONAL if "personal" in finals.objective else GLOBAL


def signs(gains: Sequence[Interval | None]) -> list[str]:
    """The signs of each comparison of one family; empty without a ``verdict``.

    ``+`` (ahead) or ``-`` (behind): the interval excludes 0; twice: also after the correction of
    Benjamini and Hochberg; three times: also after Holm's.
    """
    return [
        SIGNS.get(verdict(gain), "") * len(stars)
        for gain, stars in zip(gains, stars_of(gains), strict=True)
    ]


def by_mean_rank(frame: pd.DataFrame) -> pd.Series:
    """Method -> mean rank over the cells, the best method first.

    Cells with fewer than half of the methods do not count. A method is absent if it lacks a rank in
    a cell that counts.
    """
    ranks = frame.pivot(index="method", columns="cell", values="rank")
    ranks = ranks[ranked_cells(frame)].dropna()
    return ranks.mean(axis=1).sort_values(kind="stable")


def ranked_cells(frame: pd.DataFrame) -> list[str]:
    """The cells that count for the mean rank: at least half of all methods have a rank there."""
    ranks = frame.pivot(index="method", columns="cell", values="rank")
    return list(ranks.dropna(axis="columns", thresh=math.ceil(len(ranks) / 2)).columns)


def verdict(gain: Interval | None) -> str:
    """``ahead`` or ``behind`` if the interval excludes 0, else ``level``.

    Without a gain, or if the gain is not tested, the verdict is empty.
    """
    if gain is None or not gain.is_tested:
        return ""
    if not gain.excludes_zero:
        return "level"
    return "ahead" if gain.mean > 0 else "behind"


def conclusions(frame: pd.DataFrame) -> pd.DataFrame:
    """Count for each method the cells where it is ahead of, level with or behind the baseline.

    The last four columns count the cells where it is still ahead or behind after the correction of
    Benjamini and Hochberg (``ahead, BH``), and after Holm's (``ahead, Holm``).
    """
    compared = frame[frame["gain"].notna()]
    words = compared.assign(verdict=compared["gain"].map(verdict))
    counts = words.groupby(["method", "verdict"]).size().unstack(fill_value=0)
    counts = counts.reindex(columns=["ahead", "level", "behind"], fill_value=0)
    for least, name in ((2, "BH"), (3, "Holm")):
        for word, sign in SIGNS.items():
            survives = compared["signs"].str.startswith(sign * least)
            counts[f"{word}, {name}"] = survives.groupby(compared["method"]).sum()
    return counts


def survivors(frame: pd.DataFrame) -> list[int]:
    """The numbers of gains with at least one, two and three of the ``signs``."""
    lengths = frame["signs"].str.len()
    return [int((lengths >= least).sum()) for least in (1, 2, 3)]
