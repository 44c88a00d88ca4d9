"""Personal metrics: how well each client's own model serves that client.

Every personal model is scored once, on the samples that the metrics need (``ScoredSamples``); the
metrics of FedNH and FedGELA then follow by different weights of the classes.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fedexp.data.federated import ClientData
from fedexp.measures.scoring.scored_samples import ScoredSamples

KINDS = ("uniform", "local", "test_split", "whole")
"""The accuracies of ``personal_accuracies``."""


@dataclass(frozen=True)
class ClientScores:
    """The scores of one client's personal model.

    Attributes:
        accuracies: kind -> accuracy, see ``personal_accuracies``.
        others: further metrics; only their mean over clients is recorded.
        correct: [s] bool: whether each sample of ``ScoredSamples.share`` was classified correctly;
            empty if the whole test split is scored.
    """

    accuracies: Mapping[str, float]
    others: Mapping[str, float]
    correct: Tensor


def weighted_accuracy(
    correct_per_class: Tensor, total_per_class: Tensor, weights: Tensor
) -> Tensor:
    """The accuracy of each model k with class weights a_k(c) (FedNH, Dai et al., AAAI 2023).

    It is sum_c a_k(c) correct_c / sum_c a_k(c) total_c.

    Args:
        correct_per_class: [K, C] number of test samples of class c that model k classifies
            correctly.
        total_per_class: number of test samples of class c, [C] or, for each model, [K, C].
        weights: [K, C] a_k(c). FedNH's PM(L): the client's class shares. FedNH's PM(V): 1 for
            classes that the client holds, else 0.

    Returns:
        [K] fractions in [0, 1], float64; NaN if the weighted classes have no test samples.
    """
    weights = weights.double()
    found: Tensor = (weights * correct_per_class).sum(dim=1) / (weights * total_per_class).sum(
        dim=1
    )
    return found


def class_weights(kind: str, class_counts: Tensor) -> Tensor:
    """The weights a_k(c) [K, C] of the accuracy ``kind``, from clients' class counts [K, C]."""
    if kind == "uniform":
        return class_counts > 0
    if kind == "local":
        return class_counts / class_counts.sum(dim=1, keepdim=True)
    return torch.ones_like(class_counts)


def per_class(correct: Tensor, labels: Tensor, num_classes: int) -> tuple[Tensor, Tensor]:
    """(correct [C], total [C]) of the flags ``correct`` [n] for ``labels`` [n]."""
    hits = torch.bincount(labels[correct], minlength=num_classes)
    return hits, torch.bincount(labels, minlength=num_classes)


def personal_accuracies(
    correct: Tensor, samples: ScoredSamples, clients: Sequence[ClientData]
) -> list[dict[str, float]]:
    """Each client's accuracies of the kinds in ``samples.metrics``.

    ``uniform``: FedNH's PM(V); every class that the client holds has the same weight. ``local``:
    FedNH's PM(L); classes are weighted as in the client's training data. ``test_split``: FedGELA's
    PA, on the client's own test split. ``whole``: on the whole test split; for methods without a
    global model this is FedGELA's GA. A kind that the client's data cannot measure is absent. If
    only a subset of the test split is scored, all kinds except ``test_split`` are estimates. With
    ``partition.shift``, the recalls of the classes in ``uniform`` and ``local`` are measured on the
    client's own test split; classes without a sample there are left out.

    Args:
        correct: [K, n] ``Predictions.correct`` of each model.
        samples: the test samples that were scored.
        clients: the clients of the models.
    """
    counts = torch.stack([client.class_counts for client in clients]).cpu()
    hits, totals = samples.hits(correct, clients)
    columns = {
        kind: weighted_accuracy(hits, totals, class_weights(kind, counts)).tolist()
        for kind in samples.metrics
        if kind in ("uniform", "local", "whole")
    }
    if "test_split" in samples.metrics:
        own = [flags[each.test_index.cpu()] for flags, each in zip(correct, clients, strict=True)]
        columns["test_split"] = [
            flags.sum().item() / len(flags) if len(flags) else math.nan for flags in own
        ]
    return [
        {kind: columns[kind][row] for kind in KINDS if _measured(columns, kind, row)}
        for row in range(len(clients))
    ]


def _measured(columns: dict[str, list[float]], kind: str, row: int) -> bool:
    return kind in columns and not math.isnan(columns[kind][row])


def spread(accuracies: Sequence[float]) -> dict[str, float]:
    """Mean, population standard deviation, and mean of the worst tenth (at least one client)."""
    values = np.sort(np.asarray(accuracies, dtype=np.float64))
    worst = values[: math.ceil(len(values) / 10)]
    return {"accuracy": values.mean(), "std": values.std(), "worst_decile": worst.mean()}


def spreads(clients: Sequence[Mapping[str, float]], names: str) -> dict[str, float]:
    """``spread`` of each kind of accuracy over the clients that have it.

    Args:
        clients: each client's ``personal_accuracies``.
        names: a pattern such as ``personal/{}_{}``; statistic and kind fill the braces.
    """
    metrics: dict[str, float] = {}
    for kind in KINDS:
        measured = [accuracies[kind] for accuracies in clients if kind in accuracies]
        if measured:
            found = spread(measured)
            metrics |= {names.format(name, kind): float(v) for name, v in found.items()}
    return metrics


def personal_metrics(clients: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """The ``personal/*`` metrics of a round from each client's ``personal_accuracies``.

    ``personal/accuracy_<kind>``, ``personal/std_<kind>`` and ``personal/worst_decile_<kind>`` for
    each kind. ``personal/std`` and ``personal/worst_decile`` without a kind belong to the kind
    ``local``, the accuracy on data like the client's own.
    """
    metrics = spreads(clients, "personal/{}_{}")
    for name in ("std", "worst_decile"):
        if f"personal/{name}_local" in metrics:
            metrics[f"personal/{name}"] = metrics.pop(f"personal/{name}_local")
    return metrics


def standard_errors(
    correct: Tensor, samples: ScoredSamples, class_counts: Tensor
) -> dict[str, float]:
    """``personal/standard_error_<kind>`` of each ``personal/accuracy_<kind>`` that is an estimate.

    All models are scored on the same samples, so their errors are not independent. The mean over
    clients is therefore one stratified estimate. N_c is the number of test samples of class c, and
    a_k(c) is the class's weight in the accuracy of client k. The estimate's value for a sample of
    class c is the mean over clients k of a_k(c) N_c / sum_c' a_k(c') N_c' if model k classifies the
    sample correctly, else of 0.

    Args:
        correct: [K, s] whether each model classified each sample of ``samples.share`` correctly.
        samples: the test samples that were scored.
        class_counts: [K, C] class counts of each model's client.
    """
    labels = samples.labels[samples.share]
    errors = {}
    for kind in ("uniform", "local", "whole"):
        if kind not in samples.metrics:
            continue
        weights = class_weights(kind, class_counts.cpu()).double() * samples.totals
        shares = weights / weights.sum(dim=1, keepdim=True)
        measured = ~shares.isnan().any(dim=1)
        if measured.any():
            values = (shares[measured][:, labels] * correct[measured]).mean(dim=0)
            error = stratified_error(values, labels, samples.totals)
            errors[f"personal/standard_error_{kind}"] = error
    return errors


def stratified_error(values: Tensor, labels: Tensor, totals: Tensor) -> float:
    """Standard error of a sum of class means, which a stratified sample ``values`` estimates.

    The sample has n_c of the N_c elements of class c, drawn without replacement. The error is
    sqrt(sum_c (1 - n_c / N_c) s_c^2 / n_c), where s_c^2 is the sample variance in class c (Cochran,
    Sampling Techniques, Eq. 5.7).

    Args:
        values: [s].
        labels: [s] class of each value; n_c is at least two, unless N_c is 1 or 0.
        totals: [C] N_c, the number of samples of class c in the finite set.
    """
    variance = 0.0
    for label, total in enumerate(totals.tolist()):
        own = values[labels == label].double()
        if len(own) > 1:
            variance += (1 - len(own) / total) * own.var().item() / len(own)
    return math.sqrt(variance)
