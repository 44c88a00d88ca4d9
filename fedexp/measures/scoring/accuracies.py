"""Personal metrics: how well each client's own model serves that client.

Every personal model is scored once, on the samples that the metrics need (``ScoredSamples``). From
these scores, FedNH's metrics are computed with weights of the classes, and FedGELA's PA on each
client's test split.
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
"""The kinds of accuracy that ``personal_accuracies`` can compute."""


@dataclass(frozen=True)
class ClientScores:
    """The scores of one client's personal model.

    Attributes:
        accuracies: kind -> accuracy, see ``personal_accuracies``.
        others: name -> value of further metrics; only the mean over clients is recorded.
        correct: [s] bool: whether each of the s samples in ``ScoredSamples.share`` was classified
            correctly; empty if the whole test split is scored.
    """

    accuracies: Mapping[str, float]
    others: Mapping[str, float]
    correct: Tensor


def weighted_accuracy(
    correct_per_class: Tensor, total_per_class: Tensor, weights: Tensor
) -> Tensor:
    """The accuracy of each model k if class c has the weight a_k(c) (FedNH, Dai et al., AAAI 2023).

    It is sum_c a_k(c) correct_kc / sum_c a_k(c) total_kc, where total_kc is the number of test
    samples of class c and correct_kc the number of them that model k classifies correctly.

    Args:
        correct_per_class: [K, C] correct_kc.
        total_per_class: total_kc, [K, C], or [C] if it is the same for all models.
        weights: [K, C] a_k(c). For FedNH's PM(L), these are the client's shares of the classes. For
            FedNH's PM(V), the weight is 1 for classes that the client holds, else 0.

    Returns:
        [K] fractions in [0, 1], float64; NaN if no class with a weight above 0 has test samples.
    """
    weights = weights.double()
    found: Tensor = (weights * correct_per_class).sum(dim=1) / (weights * total_per_class).sum(
        dim=1
    )
    return found


def class_weights(kind: str, class_counts: Tensor) -> Tensor:
    """For K clients, the weight [K, C] of each class in the client's accuracy of this ``kind``.

    ``class_counts`` [K, C] has the clients' numbers of training samples of each class.
    """
    if kind == "uniform":
        return class_counts > 0
    if kind == "local":
        return class_counts / class_counts.sum(dim=1, keepdim=True)
    return torch.ones_like(class_counts)


def per_class(correct: Tensor, labels: Tensor, num_classes: int) -> tuple[Tensor, Tensor]:
    """For each class, the number of correct samples [C] and the number of all samples [C].

    Args:
        correct: [n] bool: whether each sample was classified correctly.
        labels: [n] class of each sample.
        num_classes: C.
    """
    hits = torch.bincount(labels[correct], minlength=num_classes)
    return hits, torch.bincount(labels, minlength=num_classes)


def personal_accuracies(
    correct: Tensor, samples: ScoredSamples, clients: Sequence[ClientData]
) -> list[dict[str, float]]:
    """For each client, kind -> accuracy, for the kinds of accuracy in ``samples.metrics``.

    * ``uniform``: every test sample of the client's classes counts alike (FedNH's PM(V)).
    * ``local``: a test sample counts as often as the client has training samples of its class
      (FedNH's PM(L)).
    * ``test_split``: the accuracy on the client's own test split (FedGELA's PA).
    * ``whole``: the accuracy on the whole test split. For methods without a global model it is
      FedGELA's GA.

    If the test split has equally many samples of each class, ``uniform`` counts the client's
    classes alike and ``local`` weighs them as the client's training data.

    A kind that the client's data cannot measure is absent. If only a subset of the test split is
    scored, all kinds except ``test_split`` are estimates. With ``partition.shift`` or
    ``data=synthetic``, ``uniform`` and ``local`` use the recall of each class on the client's own
    test split; classes without a sample there are left out.

    Args:
        correct: [K, n] ``Predictions.correct`` of each model, for the n test samples.
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
    found = {kind: columns[kind] for kind in KINDS if kind in columns}
    return [
        {kind: values[row] for kind, values in found.items() if not math.isnan(values[row])}
        for row in range(len(clients))
    ]


def spread(accuracies: Sequence[float]) -> dict[str, float]:
    """The mean (``accuracy``) and population standard deviation (``std``) over clients.

    ``worst_decile`` is the mean over the worst tenth of the clients, at least one client.
    """
    values = np.sort(np.asarray(accuracies, dtype=np.float64))
    worst = values[: math.ceil(len(values) / 10)]
    return {"accuracy": values.mean(), "std": values.std(), "worst_decile": worst.mean()}


def spreads(clients: Sequence[Mapping[str, float]], names: str) -> dict[str, float]:
    """``spread`` of each kind of accuracy, over the clients that have this kind.

    Args:
        clients: each client's ``personal_accuracies``.
        names: a pattern such as ``personal/{}_{}`` for the names of the metrics. The first braces
            get the statistic, such as ``std``, the second the kind of accuracy.
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

    Each kind has ``personal/accuracy_<kind>``, ``personal/std_<kind>`` and
    ``personal/worst_decile_<kind>``. For the kind ``local``, the accuracy on data like the client's
    own, the last two are called ``personal/std`` and ``personal/worst_decile``.
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
    clients is therefore treated as one estimate from one stratified sample. N_c is the number of
    test samples of class c, and a_k(c) is the weight of class c in the accuracy of client k. A
    sample of class c gets a value from each client k: a_k(c) N_c / sum_c' a_k(c') N_c' if model k
    classifies the sample correctly, else 0. The sample's value is the mean of these values over
    clients. The estimate is the sum over classes of the mean value of the class's samples.

    Args:
        correct: [K, s] bool: whether each model classified each of the s samples in
            ``samples.share`` correctly.
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
    """Standard error of the sum of the classes' means, estimated from a stratified sample.

    A finite set has N_c elements of class c; the sample has n_c of them, drawn without replacement.
    The error is sqrt(sum_c (1 - n_c / N_c) s_c^2 / n_c), where s_c^2 is the variance of the
    sample's values in class c (Cochran, Sampling Techniques, Eq. 5.7).

    Args:
        values: [s] the values in the sample.
        labels: [s] class of each value; n_c is at least two, unless N_c is 1 or 0.
        totals: [C] N_c of each class.
    """
    variance = 0.0
    for label, total in enumerate(totals.tolist()):
        own = values[labels == label].double()
        if len(own) > 1:
            variance += (1 - len(own) / total) * own.var().item() / len(own)
    return math.sqrt(variance)
