"""Standings of a contest: means, gains over a baseline with intervals, and ranks."""

import math
from collections.abc import Sequence

import pandas as pd

from fedexp.reporting.families import stars_of
from fedexp.reporting.interval import Interval, paired_difference

BASELINE = "fedavg"
SIGNS = {"ahead": "+", "behind": "-"}
"""Verdict -> the sign after a number in tables and pictures."""


def standings(finals: pd.DataFrame, metric: str, baseline: str = BASELINE) -> pd.DataFrame:
    """A frame with a row for each cell (experiment) and each method that measured ``metric`` there.

    Args:
        finals: the final runs of one search budget; see ``results.chosen``.
        metric: a column of ``finals`` in which higher values are better.
        baseline: the method to compare with.

    Returns:
        The columns are ``cell``, ``method``, ``setting``; ``mean`` and ``std`` over seeds;
        ``seeds``; ``gain``, the ``Interval`` of the paired differences to the baseline in the cell
        (None for the baseline itself, or without pairs); ``signs``, such as ``++``, see ``signs``;
        and ``rank`` by the mean within the cell, beginning with 1. The family that the signs are
        corrected for is all gains of the frame.
    """
    rows = []
    for cell, runs in finals.dropna(subset=[metric]).groupby("cell", sort=False):
        values = {
            str(name): dict(zip(own["seed"], own[metric], strict=True))
            for name, own in runs.groupby("method")
        }
        settings = dict(zip(runs["method"], runs["setting"], strict=True))
        for method, own in values.items():
            has_gain = method != baseline and baseline in values
            gain = paired_difference(own, values[baseline]) if has_gain else None
            scores = pd.Series(own)
            row = [scores.mean(), scores.std(), len(scores), gain]
            rows.append([cell, method, settings[method], *row])
    names = ["cell", "method", "setting", "mean", "std", "seeds", "gain"]
    frame = pd.DataFrame(rows, columns=names)
    gains = frame["gain"].tolist()
    frame["signs"] = [
        SIGNS.get(verdict(gain), "") * len(stars)
        for gain, stars in zip(gains, stars_of(gains), strict=True)
    ]
    frame["rank"] = frame.groupby("cell")["mean"].rank(ascending=False)
    return frame


def by_mean_rank(frame: pd.DataFrame) -> pd.Series:
    """Method -> mean rank over the cells, the best method first.

    Cells with fewer than half of the methods do not count. A method is absent if it lacks a rank in
    a cell that counts.
    """
    ranks = frame.pivot(index="method", columns="cell", values="rank")
    ranks = ranks.dropna(axis="columns", thresh=math.ceil(len(ranks) / 2)).dropna()
    return ranks.mean(axis=1).sort_values(kind="stable")


def verdict(gain: Interval | None) -> str:
    """``ahead`` or ``behind`` if the interval excludes 0, else ``level``.

    Without a gain, or with one seed, which has no interval, the verdict is empty.
    """
    if gain is None or gain.n == 1:
        return ""
    if not gain.excludes_zero:
        return "level"
    return "ahead" if gain.mean > 0 else "behind"


def conclusions(frame: pd.DataFrame, cells: Sequence[str]) -> pd.DataFrame:
    """Count for each method the cells where it is ahead of, level with or behind the baseline.

    The last four columns count the cells where it is still ahead or behind after the correction of
    Benjamini and Hochberg (``ahead, BH``), and after Holm's (``ahead, Holm``).
    """
    compared = frame[frame["cell"].isin(cells) & frame["gain"].notna()]
    words = compared.assign(verdict=compared["gain"].map(verdict))
    counts = words.groupby(["method", "verdict"]).size().unstack(fill_value=0)
    counts = counts.reindex(columns=["ahead", "level", "behind"], fill_value=0)
    for least, name in ((2, "BH"), (3, "Holm")):
        for word, sign in SIGNS.items():
            survives = compared["signs"].str.startswith(sign * least)
            counts[f"{word}, {name}"] = survives.groupby(compared["method"]).sum()
    return counts


def survivors(frame: pd.DataFrame) -> list[int]:
    """The numbers of gains with at least one, two and three signs.

    One sign: the interval excludes 0; two: also after the correction of Benjamini and Hochberg;
    three: also after Holm's.
    """
    signs = frame["signs"].str.len()
    return [int((signs >= least).sum()) for least in (1, 2, 3)]
