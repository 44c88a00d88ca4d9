"""The final, best and recent values of a run's headlines. This module imports nothing slow."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence

_SELECTORS = ("validation/accuracy", "validation/personal_accuracy")
"""The metrics that can choose the best round; the first metric that was measured chooses it."""


def headline_statistics(
    history: Sequence[Mapping[str, float]], headlines: Mapping[str, str]
) -> dict[str, dict[str, float]]:
    """Headline -> name of a statistic over the rounds -> value.

    A headline that was never measured is absent. Rounds that did not measure a headline are left
    out of its statistics:

    * ``final`` is the last measured value.
    * ``best`` is the best finite value.
    * ``mean_last5`` is the mean over the last five rounds. If none of these rounds measured the
      headline, this statistic is absent.
    * ``at_best_validation`` is the value in the round ``best_round``. If that round did not measure
      the headline, or if there are no validation data, this statistic is absent.
    * ``standard_error`` is the standard error of ``final``, for accuracies that are estimates.

    Args:
        history: the metrics of every round, in order.
        headlines: headline -> ``higher`` or ``lower``: which values are better.
    """
    rounds, best_number = list(history), best_round(history)
    chosen = {} if best_number is None else rounds[best_number - 1]
    statistics = {}
    for name, better in headlines.items():
        best: Callable[..., float] = max if better == "higher" else min
        values, recent = (
            [row[name] for row in rows if name in row] for rows in (rounds, rounds[-5:])
        )
        if values:
            statistics[name] = {
                "final": values[-1],
                "best": best(filter(math.isfinite, values), default=math.nan),
            }
            if recent:
                statistics[name]["mean_last5"] = sum(recent) / len(recent)
            if name in chosen:
                statistics[name]["at_best_validation"] = chosen[name]
            error = name.replace("personal/accuracy_", "personal/standard_error_")
            errors = [row[error] for row in rounds if error != name and error in row]
            if errors:
                statistics[name]["standard_error"] = errors[-1]
    return statistics


def best_round(history: Sequence[Mapping[str, float]]) -> int | None:
    """The number (from 1) of the round with the largest ``validation/accuracy``.

    If that metric was not measured, because there is no global model, the largest
    ``validation/personal_accuracy`` decides. If several rounds have the largest value, the first
    of them counts. None if neither metric was measured.
    """
    for name in _SELECTORS:
        measured = {n: row[name] for n, row in enumerate(history, start=1) if name in row}
        if measured:
            return max(measured, key=measured.__getitem__)
    return None


def rounds_to(
    targets: Iterable[float], history: Sequence[Mapping[str, float]]
) -> dict[str, dict[str, float]]:
    """``rounds_to/<target>``: the first round whose ``global/accuracy`` is at least the target.

    Returns:
        ``rounds_to/<target>`` -> ``final`` -> number of the round, from 1. A target that was never
        reached is absent. Rounds that did not measure the accuracy are skipped.
    """
    firsts = {target: first_round_with(history, target) for target in targets}
    return {
        f"rounds_to/{target:g}": {"final": first}
        for target, first in firsts.items()
        if first is not None
    }


def first_round_with(history: Sequence[Mapping[str, float]], target: float) -> int | None:
    """The number (from 1) of the first round with a ``global/accuracy`` of at least ``target``.

    None if there is no such round. ``history`` has the metrics of every round, in order. Rounds
    that did not measure the accuracy are skipped.
    """
    values = (row.get("global/accuracy", math.nan) for row in history)
    return next((n for n, value in enumerate(values, start=1) if value >= target), None)


def rounds_to_best_of(
    baseline: Sequence[Mapping[str, float]], history: Sequence[Mapping[str, float]]
) -> int | None:
    """The rounds in which a run reaches a baseline's best global accuracy (FedGELA, Table 9).

    If the run is the baseline itself, the result is the round of its best value; FedGELA's table
    has the total number of rounds for the baseline.

    Args:
        baseline: the metrics of every round of the baseline run, in order.
        history: the metrics of every round of the run, in order.

    Returns:
        The number of the round, from 1. None if the run never reaches the baseline's best value, or
        if the baseline has no finite value.
    """
    values = (row.get("global/accuracy", math.nan) for row in baseline)
    return first_round_with(history, max(filter(math.isfinite, values), default=math.inf))
