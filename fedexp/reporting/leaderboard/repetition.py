"""How far ranks and gains move if the chosen settings run again, for example with other seeds."""

import math
from typing import Any

import pandas as pd
from scipy.special import stdtr
from scipy.stats import kendalltau

from fedexp.reporting.interval import Interval, critical_value
from fedexp.reporting.leaderboard.page import METRICS
from fedexp.reporting.leaderboard.results import best
from fedexp.reporting.leaderboard.standings import SIGNS, ranks, standings, verdict
from fedexp.reporting.leaderboard.tuning import DIGITS
from fedexp.reporting.table import Table

_ROW = ["cell", "method", "setting"]
_COLUMNS = [
    *("accuracy", "cell", "methods", "Kendall's tau", "largest change of rank"),
    *("gains inside", "expected inside", "signs kept", "signs reversed"),
]
_NOTES = [
    "The settings are the same, the runs are others. Ranks are among the methods that both have in "
    "the cell.",
    "Kendall's tau of the two orders: 1 if they are equal, 0 if they have nothing in common.",
    "Inside: the new gain over fedavg is in the earlier 95 % interval. Expected inside: the number "
    "if nothing but chance differs. It is less than 95 %, since the new mean varies, too. Methods "
    "that differed from fedavg by the same number in each seed, as those with its own model, have "
    "no such interval and are left out.",
    "Signs: methods that were ahead of or behind fedavg and are so again, or are the opposite; "
    "the others are level now.",
    "All gains of a cell share fedavg's runs, so that they move together: if fedavg is lucky once, "
    "many gains leave their intervals.",
]
_FAMILIES = ("alone", "after Benjamini and Hochberg", "after Holm")
"""What a gain's first, second and third sign survive."""
_AGAIN = ["accuracy", "interval without 0", "gains", "again", "in the same direction", "reversed"]
_AGAIN_NOTES = [
    "gains: those whose interval excluded 0 in the earlier runs, alone or after a correction for "
    "all comparisons of the accuracy. again: the new interval excludes 0 on the same side. In the "
    "same direction: the new mean is on the same side. reversed: the new interval excludes 0 on "
    "the other side."
]


def repetition(now: pd.DataFrame, before: pd.DataFrame) -> Table:
    """The table that compares two results of one contest, a row for each accuracy and cell.

    Args:
        now, before: results, see ``results.read_results``. Of each the largest search budget
            counts, and methods with another setting are left out.
    """
    rows = []
    for metric in METRICS:
        both = _joined(now, before, metric)
        rows += [[metric, str(cell), *_compared(own)] for cell, own in both.groupby("cell")]
    return Table("Compared with the earlier runs", _COLUMNS, rows, notes=_NOTES, keys=2)


def verdicts_again(now: pd.DataFrame, before: pd.DataFrame) -> Table:
    """How many earlier verdicts are there again: a row for each accuracy and correction.

    The arguments are those of ``repetition``.
    """
    rows = []
    for metric in METRICS:
        both = _joined(now, before, metric)
        for count, family in enumerate(_FAMILIES, 1):
            pairs = _pairs(both[both["signs before"].map(len) >= count])
            if pairs:
                rows.append([metric, family, *_repeated(pairs)])
    return Table("Verdicts that are there again", _AGAIN, rows, notes=_AGAIN_NOTES, keys=2)


def _joined(now: pd.DataFrame, before: pd.DataFrame, metric: str) -> pd.DataFrame:
    """The standings of both, a row for each cell, method and setting that both have."""
    new, old = (standings(best(each), metric).set_index(_ROW) for each in (now, before))
    return new.add_suffix(" now").join(old.add_suffix(" before"), how="inner").reset_index()


def _repeated(pairs: list[tuple[Interval, Interval]]) -> list[str]:
    """Of pairs of an earlier and a new gain: all, and how many agree in each way."""
    again = sum(verdict(old) == verdict(new) for old, new in pairs)
    direction = sum(old.mean * round(new.mean, DIGITS) > 0 for old, new in pairs)
    reversed_ = sum({verdict(old), verdict(new)} == {"ahead", "behind"} for old, new in pairs)
    return [str(len(pairs)), str(again), str(direction), str(reversed_)]


def _compared(both: pd.DataFrame) -> list[str]:
    """The row of a cell, behind its name."""
    before, now = (ranks(both[f"mean {when}"]) for when in ("before", "now"))
    tau = kendalltau(before, now).statistic if len(both) > 1 else math.nan  # NaN without an order
    pairs = _pairs(both)
    inside = sum(old.contains(new.mean) for old, new in pairs)
    expected = sum(expected_inside(old.n, new.n) for old, new in pairs)
    signs = [(verdict(old), verdict(new)) for old, new in pairs if verdict(old) in SIGNS]
    kept = sum(old == new for old, new in signs)
    reversed_ = sum({"ahead", "behind"} == {*pair} for pair in signs)
    agreement = "" if math.isnan(tau) else f"{tau:.2f}"
    orders = [str(len(both)), agreement, _largest_change(both["method"], before, now)]
    gains = [f"{inside} of {len(pairs)}", f"{expected:.1f}", f"{kept} of {len(signs)}"]
    return [*orders, *gains, str(reversed_)]


def _largest_change(methods: pd.Series, before: pd.Series, now: pd.Series) -> str:
    place = int((now - before).abs().to_numpy().argmax())
    old, new = before.iloc[place], now.iloc[place]
    return "none" if old == new else f"{methods.iloc[place]}: {old:g} to {new:g}"


def _pairs(both: pd.DataFrame) -> list[tuple[Interval, Interval]]:
    """(The gain before, the gain now) of each method whose gain before has an interval.

    A method with the baseline's own model has none: it differs in no seed.
    """
    gains: list[tuple[Any, Any]] = list(zip(both["gain before"], both["gain now"], strict=True))
    return [(old, new) for old, new in gains if old and new and old.has_spread]


def expected_inside(old: int, new: int) -> float:
    """The chance that the mean of ``new`` further pairs is in the 95 % interval of ``old`` pairs.

    With normal differences, (new mean - old mean) / (s sqrt(1/old + 1/new)) has Student's
    t-distribution with old - 1 degrees of freedom, where s is the deviation of the old pairs. The
    interval has the half width t s / sqrt(old), where t is the distribution's critical value.
    """
    bound = critical_value(old) / math.sqrt(1 + old / new)
    return float(1 - 2 * stdtr(old - 1, -bound))
