"""The clients' local training: losses, and metrics that parts log."""

from collections import defaultdict
from collections.abc import Sequence
from math import fsum
from types import MappingProxyType

from fedexp.measures.after_round import AfterRound
from fedexp.measures.exchange import Receipt
from fedexp.measures.measure import Measure, Measured

_FROM_TRAINING = ("loss", "cross_entropy")
"""Metrics with the prefix ``train/`` and a standard deviation."""


class Training(Measure):
    """Means over the cohort of the metrics of local training.

    ``train/loss`` is the mean training loss (the whole objective, over all steps), weighted by the
    clients' samples. ``train/cross_entropy`` is the unweighted mean of the clients' cross-entropies
    over the last local epoch. ``train/loss_std`` and ``train/cross_entropy_std`` are population
    standard deviations over clients. A metric that a part logs is averaged over the clients that
    logged it. Two costs are averaged, too: ``cost/client_memory_bytes``, the bytes that a client
    keeps between rounds, and ``cost/stored_parameters``, the count of numbers that local training
    holds.
    """

    headlines = MappingProxyType({"train/loss": "lower"})
    directions = MappingProxyType({"train/loss_std": "lower", "train/cross_entropy*": "lower"})

    def __call__(self, after: AfterRound) -> Measured:
        """``train/*`` and the logged metrics; the order of the updates does not matter."""
        return Measured(mean_metrics(after.exchange.receipts))


def mean_metrics(receipts: Sequence[Receipt]) -> dict[str, float]:
    """The metrics of ``Training`` for these accepted updates."""
    values: dict[str, list[float]] = defaultdict(list)
    for update in receipts:
        for name, value in update.metrics.items():
            values[name].append(value)
    metrics = {}
    for name, each in values.items():
        if name in _FROM_TRAINING:
            metrics[f"train/{name}"], metrics[f"train/{name}_std"] = _mean_and_std(each)
        else:
            metrics[name] = fsum(each) / len(each)
    if "loss" in values:
        weighted = [each.metrics["loss"] * each.num_samples for each in receipts]
        metrics["train/loss"] = fsum(weighted) / sum(each.num_samples for each in receipts)
    return metrics


def _mean_and_std(values: Sequence[float]) -> tuple[float, float]:
    """Mean and population standard deviation."""
    mean = fsum(values) / len(values)
    return mean, (fsum((value - mean) ** 2 for value in values) / len(values)) ** 0.5
