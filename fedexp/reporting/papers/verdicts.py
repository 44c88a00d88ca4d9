"""Verdicts: what our numbers say about the published numbers, in words."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fedexp.reporting.interval import (
    BASELINE_BELOW,
    NOT_REACHED,
    Interval,
    paired_difference,
    smallest_gain,
)
from fedexp.reporting.marks import direction
from fedexp.reporting.papers.cells import Cell, cells
from fedexp.reporting.runs import Run
from fedexp.reporting.statistics import COSTS_TO, SMOOTHED_ROUNDS_TO, SMOOTHING

AHEAD, BEHIND, NOT_SHOWN = "ahead", "behind", "no difference shown"
UNLIKE = " unlike the paper"
INSIDE, OUTSIDE = "paper's gain inside", "paper's gain outside"
NOT_DEFINED = "no such statistic in the paper"
NOT_TESTED = {1: "one seed, not tested", 2: "two seeds, not tested"}
NO_SPREAD = "the same difference in each seed, not tested"
NOT_RUN, BASELINE = "not run", "baseline"
NOT_FINISHED, NOT_MEASURED = "not finished", "not measured"
TOO_SHORT, DIVERGED = "too few rounds to smooth", "diverged"
_NO_BASELINE = {NOT_REACHED: BASELINE_BELOW, TOO_SHORT: "baseline too short to smooth"}
_SMOOTHING_PAPERS = ("hics",)
"""Folders of the presets of papers that count rounds on smoothed curves."""
_NO_GAIN = 1e-6
"""If the published gain is 0, a gain of ours below this bound counts as a rounding error."""


@dataclass(frozen=True)
class Verdict:
    """A cell compared with its table's baseline.

    Attributes:
        cell: the published number and our number.
        published_gain: the published value minus the baseline's published value; NaN for the
            baseline itself.
        gain: our paired difference to the baseline; None if it cannot be computed.
        words: the verdict.
        recent_gain: if the paper reports the best round, our paired difference in the mean of the
            last five measurements, which does not choose its rounds by the test data; else None.
        folders: the folders of the runs of the cell and of its baseline.
    """

    cell: Cell
    published_gain: float
    gain: Interval | None
    words: str
    recent_gain: Interval | None = None
    folders: frozenset[Path] = frozenset()

    @property
    def contradicts(self) -> bool:
        """Whether our interval excludes 0 and our gain has another sign than the paper's."""
        return UNLIKE in self.words

    @property
    def smallest_gain(self) -> float | None:
        """If no difference is shown, the gain that so many seeds show in 80 % of all cases.

        None if the difference is the same number in each seed.
        """
        could_show = self.gain is not None and self.gain.has_spread
        shows_none = could_show and self.words.startswith(NOT_SHOWN)
        return smallest_gain(self.gain) if self.gain and shows_none else None


def beside_the_paper(runs: Sequence[Run], smooth: bool = False) -> list[Verdict]:
    """Every published number of the runs' experiments, with our number and a verdict.

    In each column of a table the first method is the baseline. If the baseline has several cells,
    each method is compared with the cell whose command line is most like the method's command line.
    If ``smooth`` is true, rounds to a target are counted on smoothed curves.
    """
    columns: dict[tuple[str, ...], list[Cell]] = {}
    for cell in cells(runs, smooth):
        columns.setdefault((cell.experiment, *cell.column), []).append(cell)
    pairs = ((cell, _baseline(cell, own)) for own in columns.values() for cell in own)
    return [
        replace(judge(cell, base), folders=frozenset((*cell.folders, *base.folders)))
        for cell, base in pairs
    ]


def as_row(verdict: Verdict) -> dict[str, Any]:
    """The verdict as a row of the frame ``paper`` of a report."""
    cell, gain, recent = verdict.cell, verdict.gain, verdict.recent_gain
    names = ("experiment", "table", "metric", "statistic", "method")
    return {
        **{name: getattr(cell, name) for name in names},
        "overrides": " ".join(cell.overrides),
        "published": cell.published,
        "published_spread": cell.spread,
        "ours": cell.mean,
        "seeds": len(cell.ours),
        "seeds_run": cell.seeds,
        "at_bound": cell.at_bound,
        "published_gain": verdict.published_gain,
        "gain": None if gain is None else gain.mean,
        "half_width": None if gain is None else gain.half_width,
        "recent_gain": None if recent is None else recent.mean,
        "recent_half_width": None if recent is None else recent.half_width,
        "verdict": verdict.words,
        "could_show": verdict.smallest_gain,
        "varies": cell.varies,
        "differs": " ".join(cell.differs),
        "command": cell.command,
    }


def judge(cell: Cell, baseline: Cell) -> Verdict:
    """The verdict on ``cell``: what does our gain over ``baseline`` say about the published gain?

    A verdict on a gain of three or more seeds has two parts. The first says whether the 95 %
    interval of our paired differences contains 0:

    * "no difference shown": it does;
    * "ahead" or "behind": it does not, and we have the paper's sign;
    * "ahead unlike the paper" or "behind unlike the paper": it does not, and the paper has the
      opposite sign, or no gain.

    The second says whether the interval contains the published gain: "paper's gain inside" or
    "paper's gain outside". "One seed, not tested" and "two seeds, not tested" replace both.

    Other verdicts:

    * "baseline": the cell is the baseline itself;
    * "no such statistic in the paper": we count rounds on smoothed curves, but the paper counts
      them on raw curves;
    * "in 1 of 3 seeds": the other seeds did not measure the metric, so a gain would mislead;
    * "diverged", "target not reached" (by any seed), "not finished", "not measured", "too few
      rounds to smooth", "not run": the cell has no value for this reason;
    * "baseline diverged" and so on: only the baseline has no value ("baseline below target" if it
      did not reach the target with any seed);
    * "sign open": a run that missed the target ended below the other run's cost;
    * "no seed in common": no run of the cell has the same seed as a run of the baseline.
    """
    is_baseline = cell.method == baseline.method
    published = math.nan if is_baseline else cell.published - baseline.published
    if not cell.ran:
        return Verdict(cell, published, None, NOT_RUN)
    if not cell.has_value:
        return Verdict(cell, published, None, _why_no_value(cell))
    if is_baseline:
        return Verdict(cell, published, None, BASELINE)
    if cell.partial:
        return Verdict(cell, published, None, _in_seeds(cell))
    gain = paired_difference(cell.ours, baseline.ours)
    if gain is None or baseline.partial or not baseline.has_value:
        return Verdict(cell, published, None, _why_no_pair(baseline))
    if not math.isfinite(gain.mean):
        return Verdict(cell, published, None, gain.reason or _who_diverged(cell))
    recent = paired_difference(cell.recent, baseline.recent)
    return Verdict(cell, published, gain, _compare(gain, published, cell), recent)


def _why_no_value(cell: Cell) -> str:
    if cell.rounds < cell.planned:
        return NOT_FINISHED
    if cell.metric.startswith(SMOOTHED_ROUNDS_TO) and cell.measured < SMOOTHING[0]:
        return TOO_SHORT
    return NOT_REACHED if cell.metric.startswith(COSTS_TO) else NOT_MEASURED


def _why_no_pair(baseline: Cell) -> str:
    if not baseline.ran:
        return f"{BASELINE} {NOT_RUN}"
    if baseline.partial:
        return f"{BASELINE} {_in_seeds(baseline)}"
    if baseline.has_value:
        return "no seed in common"
    why = _why_no_value(baseline)
    return _NO_BASELINE.get(why, f"{BASELINE} {why}")


def _in_seeds(cell: Cell) -> str:
    return f"in {len(cell.ours)} of {cell.seeds} seeds"


def _who_diverged(cell: Cell) -> str:
    own = not all(map(math.isfinite, cell.ours.values()))
    return DIVERGED if own else f"{BASELINE} {DIVERGED}"


def _compare(gain: Interval, published: float, cell: Cell) -> str:
    paper = cell.experiment.partition("/")[0]
    if cell.metric.startswith(SMOOTHED_ROUNDS_TO) and paper not in _SMOOTHING_PAPERS:
        return NOT_DEFINED
    if gain.n in NOT_TESTED:
        return NOT_TESTED[gain.n]
    if published == 0 and abs(gain.mean) < _NO_GAIN:
        return f"{NOT_SHOWN}; {INSIDE}"
    if not gain.is_tested:
        return NO_SPREAD
    contains = gain.contains(published)
    return f"{_direction(gain, published, cell)}; {INSIDE if contains else OUTSIDE}"


def _direction(gain: Interval, published: float, cell: Cell) -> str:
    if not gain.excludes_zero:
        return NOT_SHOWN
    lower_is_better = direction(cell.metric, cell.better) == "lower"
    words = AHEAD if (gain.mean < 0) == lower_is_better else BEHIND
    return words if gain.mean * published > 0 else words + UNLIKE


def _baseline(cell: Cell, cells: Sequence[Cell]) -> Cell:
    """The first method's cell whose overrides are most like the overrides of ``cell``."""
    first = [each for each in cells if each.method == cells[0].method]
    return min(first, key=lambda each: len(set(each.differs) ^ set(cell.differs)))
