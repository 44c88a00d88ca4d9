"""Verdicts: whether our numbers reproduce the published numbers, in words."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from fedexp.papers.cells import Cell, cells
from fedexp.reporting.runs import Run
from fedexp.reporting.statistics import (
    COSTS_TO,
    SMOOTHED_ROUNDS_TO,
    SMOOTHING,
    Interval,
    paired_difference,
)

SAME, SAME_SIGN = "same sign and size", "same sign"
NOT_SHOWN, REVERSED = "no difference shown", "not reproduced"
NOT_DEFINED = "no such statistic in the paper"
NOT_TESTED = {1: "one seed, not tested", 2: "two seeds, not tested"}
NOT_RUN, BASELINE, NOT_REACHED = "not run", "baseline", "target not reached"
NOT_FINISHED, NOT_MEASURED = "not finished", "not measured"
TOO_SHORT, DIVERGED = "too few rounds to smooth", "diverged"
_NO_BASELINE = {NOT_REACHED: "baseline below target", TOO_SHORT: "baseline too short to smooth"}
_SMOOTHING_PAPERS = ("hics",)
"""Folders of the presets of papers that count rounds on smoothed curves."""
_SIZE = (0.5, 2.0)
"""Two gains have the same size if our gain / published gain is within these bounds."""
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
    """

    cell: Cell
    published_gain: float
    gain: Interval | None
    words: str


def beside_the_paper(runs: Sequence[Run], smooth: bool = False) -> list[Verdict]:
    """Every published number of the runs' experiments, with our number and a verdict.

    In each column of a table the first method is the baseline. If the baseline has several cells,
    each method is compared with the cell whose command line is most like the method's command line.
    If ``smooth`` is true, rounds to a target are counted on smoothed curves.
    """
    columns: dict[tuple[str, ...], list[Cell]] = {}
    for cell in cells(runs, smooth):
        columns.setdefault((cell.experiment, *cell.column), []).append(cell)
    return [judge(cell, _baseline(cell, own)) for own in columns.values() for cell in own]


def judge(cell: Cell, baseline: Cell) -> Verdict:
    """The verdict on ``cell``: does our gain over ``baseline`` agree with the published gain?

    Verdicts on a gain:

    * "same sign and size": our gain is between half and twice the published gain, or our 95 %
      interval contains the published gain, or neither the paper nor we have a gain;
    * "same sign": only the size differs;
    * "not reproduced": our gain has the opposite sign, or we have a gain and the paper has none;
    * "no difference shown": our interval contains zero, but the paper has a gain;
    * "one seed, not tested" or "two seeds, not tested": the first three verdicts need three seeds.

    Other verdicts:

    * "baseline": the cell is the baseline itself;
    * "no such statistic in the paper": we count rounds on smoothed curves, but the paper counts
      them on raw curves;
    * "in 1 of 3 seeds": the other seeds have no value, so a gain would mislead;
    * "diverged", "target not reached", "not finished", "not measured", "too few rounds to smooth",
      "not run": the cell has no value for this reason;
    * "baseline diverged" and so on: only the baseline has no value ("baseline below target" if it
      did not reach the target);
    * "no seed in common": no run of the cell has the same seed as a run of the baseline.
    """
    is_baseline = cell.method == baseline.method
    published = math.nan if is_baseline else cell.published - baseline.published
    if not cell.ran:
        return Verdict(cell, published, None, NOT_RUN)
    if not cell.ours:
        return Verdict(cell, published, None, _why_no_value(cell))
    if is_baseline:
        return Verdict(cell, published, None, BASELINE)
    if cell.partial:
        return Verdict(cell, published, None, _in_seeds(cell))
    gain = paired_difference(cell.ours, baseline.ours)
    if gain is None or baseline.partial:
        return Verdict(cell, published, None, _why_no_pair(baseline))
    if not math.isfinite(gain.mean):
        return Verdict(cell, published, None, _who_diverged(cell))
    return Verdict(cell, published, gain, _compare(gain, published, cell))


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
    if baseline.ours:
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
    if gain.n > 1 and not gain.excludes_zero and published != 0:
        return NOT_SHOWN
    if gain.n in NOT_TESTED:
        return NOT_TESTED[gain.n]
    if published == 0:
        is_none = not gain.excludes_zero or abs(gain.mean) < _NO_GAIN
        return SAME if is_none else REVERSED
    if gain.mean * published <= 0:
        return REVERSED
    low, high = _SIZE
    near = abs(gain.mean - published) <= gain.half_width
    return SAME if near or low <= gain.mean / published <= high else SAME_SIGN


def _baseline(cell: Cell, cells: Sequence[Cell]) -> Cell:
    """The first method's cell whose overrides are most like the overrides of ``cell``."""
    first = [each for each in cells if each.method == cells[0].method]
    return min(first, key=lambda each: len(set(each.differs) ^ set(cell.differs)))
