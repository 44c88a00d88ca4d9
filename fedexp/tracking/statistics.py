"""The headline metrics of a run: their final, best and recent values. Imports nothing slow."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence

_SELECTORS = ("validation/accuracy", "validation/personal_accuracy")
"""What chooses the best round: the first of these that was measured."""


def headline_statistics(
    history: Sequence[Mapping[str, float]], headlines: Mapping[str, str]
) -> dict[str, dict[str, float]]:
    """``final``, ``best`` and ``mean_last5`` of each headline metric, and ``at_best_validation``.

    Only rounds that measured a metric count for it; one that was never measured is absent. If a
    loss ended as NaN, so is ``final``, while ``best`` is over the finite values. ``mean_last5`` is
    the mean over the last five rounds, absent if none of them measured it. ``at_best_validation``
    is the value in ``best_round``, absent if the metric was not measured in that round, or without
    validation data.
    ``standard_error`` is that of ``final``, of accuracies that are estimates.

    Args:
        history: the metrics of every round, in order.
        headlines: metric -> ``higher`` or ``lower``, whichever is better.
    """
    rounds, best_number = list(history), best_round(history)
    chosen = {} if best_number is None else rounds[best_number - 1]
    statistics = {}
    for name, better in headlines.items():
        values, recent = (
            [row[name] for row in rows if name in row] for rows in (rounds, rounds[-5:])
        )
        if values:
            statistics[name] = {
                "final": values[-1],
                "best": best_of(better)(filter(math.isfinite, values), default=math.nan),
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


def best_of(better: str) -> Callable[..., float]:
    """``max`` or ``min``: chooses the best of several values of a metric."""
    return max if better == "higher" else min


def best_round(history: Sequence[Mapping[str, float]]) -> int | None:
    """The round, from 1, with the largest ``validation/accuracy``; the first one of several.

    Without a global model, ``validation/personal_accuracy`` takes its place. None if neither was
    ever measured.
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

    Under ``final`` alone, as it has one value; a target that was never reached is absent. A round
    that did not measure the accuracy does not count.
    """
    firsts = {target: first_round_with(history, target) for target in targets}
    return {
        f"rounds_to/{target:g}": {"final": first}
        for target, first in firsts.items()
        if first is not None
    }


def first_round_with(
    history: Sequence[Mapping[str, float]], target: float, metric: str = "global/accuracy"
) -> int | None:
    """The first round, from 1, in which ``metric`` is at least ``target``; None if there is none.

    ``history`` are the metrics of every round, in order, as in ``metrics.jsonl``. A round that did
    not measure the metric does not count.
    """
    values = (row.get(metric, math.nan) for row in history)
    return next((n for n, value in enumerate(values, start=1) if value >= target), None)


def rounds_to_best_of(
    baseline: Sequence[Mapping[str, float]],
    history: Sequence[Mapping[str, float]],
    metric: str = "global/accuracy",
) -> int | None:
    """Rounds of a run until the best value of another run (FedGELA, Table 9).

    For the baseline itself it is the round of its best value; FedGELA's table prints the number of
    all its rounds there.

    Args:
        baseline: the metrics of every round of the other run, in order.
        history: those of the run.
        metric: one that is the better the larger it is.

    Returns:
        None if it was never reached, or the baseline never measured the metric, or always as NaN.
    """
    measured = (row[metric] for row in baseline if math.isfinite(row.get(metric, math.nan)))
    return first_round_with(history, max(measured, default=math.inf), metric)
