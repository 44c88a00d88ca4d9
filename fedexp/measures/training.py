"""Metrics of the clients' local training: losses, and metrics that parts log."""

from collections import defaultdict
from collections.abc import Sequence
from math import fsum, isfinite
from types import MappingProxyType

from fedexp.core.messages import Update
from fedexp.measures.measure import AfterRound, Measure, Measured

_FROM_TRAINING = ("loss", "cross_entropy")
"""Metrics of clients that get the prefix ``train/``, and also a standard deviation."""


class Training(Measure):
    """The mean over the cohort of each metric of local training.

    ``train/loss`` is the mean training loss, weighted by the clients' numbers of samples. The loss
    of a client is its whole objective, averaged over all its steps. Weight decay is left out, and
    so are penalties that act like it (``Regularizer.unclipped_gradient``). ``train/cross_entropy``
    is the unweighted mean over clients of the cross-entropy in the last local epoch.
    ``train/loss_std`` and ``train/cross_entropy_std`` are population standard deviations over
    clients. A metric that a part logs is averaged over the clients that logged it. Two costs are
    averaged in the same way: ``cost/client_memory_bytes`` is the bytes that a client keeps between
    rounds, and ``cost/stored_parameters`` is the number of elements in all parameters and buffers
    of a client's network, of the parts and of frozen copies.
    """

    headlines = MappingProxyType({"train/loss": "lower"})
    directions = MappingProxyType({"train/loss_std": "lower", "train/cross_entropy*": "lower"})

    def __call__(self, after: AfterRound) -> Measured:
        """``train/*`` and the parts' metrics; they do not depend on the order of the updates."""
        return Measured(mean_metrics(after.exchange.receipts))


def mean_metrics(receipts: Sequence[Update]) -> dict[str, float]:
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
            metrics[name] = _sum(each) / len(each)
    if "loss" in values:
        weighted = [each.metrics["loss"] * each.num_samples for each in receipts]
        metrics["train/loss"] = _sum(weighted) / sum(each.num_samples for each in receipts)
    return metrics


def _mean_and_std(values: Sequence[float]) -> tuple[float, float]:
    """Mean and population standard deviation."""
    mean = _sum(values) / len(values)
    return mean, (_sum([(value - mean) ** 2 for value in values]) / len(values)) ** 0.5


def _sum(values: Sequence[float]) -> float:
    """A sum that does not depend on the order; NaN for infinities of both signs."""
    return fsum(values) if all(map(isfinite, values)) else sum(values)
