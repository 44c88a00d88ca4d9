"""Compares the metrics of a run with the metrics of the same run, trained again."""

import math
from collections.abc import Iterator, Mapping, Sequence

from fedexp.tracking.tracker import Record

TOLERANCE = 0.01
"""On another kind of machine a value may differ by 0.01, or by 1% if that is more.

The first rounding that differs changes all later rounds a little.
"""

_CLOCK = "time/"
"""Beginning of the metrics that a clock measures."""


def first_difference(
    claimed: Sequence[Record],
    again: Sequence[Record],
    tolerance: float = 0.0,
    fewer: bool = False,
) -> str | None:
    """The first round and metric that differ by more than the tolerance, in words; else None.

    Args:
        claimed: the rounds in the run's folder.
        again: the same rounds, trained again.
        tolerance: largest allowed difference, absolute or relative.
        fewer: whether the run may have measured fewer metrics.
    """
    was, now = ({each.round: _values(each) for each in records} for records in (claimed, again))
    for round in sorted(was.keys() | now.keys()):
        if round not in was:
            return f"round {round} is missing"
        if round not in now:
            return f"round {round} is there, but training again has no such round"
        others = now[round]
        if fewer:
            others = {name: value for name, value in others.items() if name in was[round]}
        if found := list(_differences(was[round], others, tolerance)):
            more = f", and {len(found) - 1} more metrics" if found[1:] else ""
            return f"round {round}: {found[0]}{more}"
    return None


def _values(record: Record) -> dict[str, float]:
    """Metric -> value, with the accuracy of each class, without what a clock measured."""
    classes = {f"global/per_class_accuracy.{name}": v for name, v in record.per_class.items()}
    every = {**record.metrics, **classes}
    return {name: value for name, value in every.items() if not name.startswith(_CLOCK)}


def _differences(
    was: Mapping[str, float], now: Mapping[str, float], tolerance: float
) -> Iterator[str]:
    for name in [*was, *(each for each in now if each not in was)]:
        if name not in now:
            yield f"{name} is {was[name]!r}, but is not measured again"
        elif name not in was:
            yield f"{name} is missing, again it is {now[name]!r}"
        elif not _alike(was[name], now[name], tolerance):
            gap = abs(was[name] - now[name])
            yield f"{name} is {was[name]!r}, again it is {now[name]!r}; they differ by {gap:.2g}"


def _alike(one: float, other: float, tolerance: float) -> bool:
    if math.isnan(one) or math.isnan(other):
        return math.isnan(one) and math.isnan(other)
    return one == other or math.isclose(one, other, rel_tol=tolerance, abs_tol=tolerance)
