"""Personal metrics: how well each client's own model serves that client.

Every personal model is scored once on the whole test split; weights over classes turn that one pass
into the metrics of FedNH and FedGELA.
"""

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from fedexp.data.federated import ClientData
from fedexp.engines.predictions import Predictions

KINDS = ("uniform", "local", "test_split", "whole")
"""The accuracies of ``personal_accuracies``."""


def weighted_accuracy(correct_per_class: Tensor, total_per_class: Tensor, weights: Tensor) -> float:
    """acc_k = sum_c a_k(c) correct_c / sum_c a_k(c) total_c (FedNH, Dai et al., AAAI 2023).

    Args:
        correct_per_class: [C] test samples of class c that the model got right.
        total_per_class: [C] test samples of class c.
        weights: [C] a_k(c): the client's class shares for PM(L), their support (0 or 1) for PM(V).

    Returns:
        A fraction in [0, 1]; NaN if the weighted classes have no test samples.
    """
    weights = weights.double()
    total = (weights * total_per_class).sum()
    return ((weights * correct_per_class).sum() / total).item()


def per_class(correct: Tensor, labels: Tensor, num_classes: int) -> tuple[Tensor, Tensor]:
    """(correct [C], total [C]) of the flags ``correct`` [n] for ``labels`` [n]."""
    hits = torch.bincount(labels[correct], minlength=num_classes)
    return hits, torch.bincount(labels, minlength=num_classes)


def personal_accuracies(
    predictions: Predictions, labels: Tensor, client: ClientData
) -> dict[str, float]:
    """One client's accuracies; one that its data cannot measure is absent.

    ``uniform``: FedNH's PM(V), every class that the client holds has the same weight. ``local``:
    FedNH's PM(L), classes are weighted as in the client's training data. ``test_split``: FedGELA's
    PA, on the client's own test split. ``whole``: on the whole test split, which is FedGELA's GA of
    methods without a global model.
    """
    counts = client.class_counts.cpu()
    correct, total = per_class(predictions.correct, labels, len(counts))
    own = predictions.correct[client.test_index.cpu()]
    accuracies = {
        "uniform": weighted_accuracy(correct, total, counts > 0),
        "local": weighted_accuracy(correct, total, counts / counts.sum()),
        "test_split": own.double().mean().item() if len(own) else math.nan,
        "whole": predictions.correct.double().mean().item(),
    }
    return {name: value for name, value in accuracies.items() if not math.isnan(value)}


def spread(accuracies: Sequence[float]) -> dict[str, float]:
    """Over clients: mean, population standard deviation, mean of the worst tenth (at least one)."""
    values = np.sort(np.asarray(accuracies, dtype=np.float64))
    worst = values[: math.ceil(len(values) / 10)]
    return {"accuracy": values.mean(), "std": values.std(), "worst_decile": worst.mean()}


def personal_metrics(clients: Sequence[dict[str, float]]) -> dict[str, float]:
    """The ``personal/*`` metrics of a round from each client's ``personal_accuracies``.

    ``personal/accuracy_<kind>``, ``personal/std_<kind>`` and ``personal/worst_decile_<kind>`` for
    each kind; ``personal/std`` and ``personal/worst_decile`` without a kind are those of ``local``,
    the accuracy on data like the client's own.
    """
    metrics: dict[str, float] = {}
    for kind in KINDS:
        measured = [accuracies[kind] for accuracies in clients if kind in accuracies]
        if measured:
            found = spread(measured)
            metrics |= {f"personal/{name}_{kind}": float(v) for name, v in found.items()}
    for name in ("std", "worst_decile"):
        if f"personal/{name}_local" in metrics:
            metrics[f"personal/{name}"] = metrics.pop(f"personal/{name}_local")
    return metrics
