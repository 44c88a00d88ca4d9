"""A worked example: a client with classes 0 and 1 in the ratio 3 to 1, a test split of six.

labels   0  0  1  1  1  2
correct  1  0  1  1  0  1      per class: 1 of 2, 2 of 3, 1 of 1
"""

import math
from itertools import product
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from fedexp.data.federated import ClientData
from fedexp.measures.scoring.accuracies import (
    KINDS,
    per_class,
    personal_accuracies,
    personal_metrics,
    standard_errors,
    stratified_error,
    weighted_accuracy,
)
from fedexp.measures.scoring.scored_samples import ScoredSamples

LABELS = torch.tensor([0, 0, 1, 1, 1, 2])
CORRECT = torch.tensor([1, 0, 1, 1, 0, 1], dtype=torch.bool)


def client(counts: list[int], test_index: list[int]) -> ClientData:
    held = torch.tensor(counts)
    empty = torch.tensor([], dtype=torch.int64)
    return ClientData(0, held, empty, torch.tensor(test_index, dtype=torch.int64), None)  # type: ignore[arg-type]


def samples(
    num_classes: int = 3,
    size: int | None = None,
    labels: torch.Tensor = LABELS,
    metrics: tuple[str, ...] = KINDS,
) -> ScoredSamples:
    test = SimpleNamespace(labels=labels)
    data: Any = SimpleNamespace(
        test=test, description=SimpleNamespace(num_classes=num_classes), seed=0
    )
    return ScoredSamples(data, metrics, size)


def accuracies(client: ClientData, **options: Any) -> dict[str, float]:
    (found,) = personal_accuracies(
        CORRECT[None], samples(len(client.class_counts), **options), [client]
    )
    return found


def test_per_class_counts() -> None:
    correct, total = per_class(CORRECT, LABELS, num_classes=4)
    assert correct.tolist() == [1, 2, 1, 0]
    assert total.tolist() == [2, 3, 1, 0]


def test_weighted_accuracy() -> None:
    correct, total = torch.tensor([[1, 2, 1]] * 2), torch.tensor([2, 3, 1])
    # (0.75 * 1 + 0.25 * 2) / (0.75 * 2 + 0.25 * 3) = 1.25 / 2.25
    shares = torch.tensor([[0.75, 0.25, 0.0], [0.0, 0.0, 0.0]])
    first, second = weighted_accuracy(correct, total, shares).tolist()
    assert first == pytest.approx(1.25 / 2.25)
    assert math.isnan(second)


def test_the_accuracies_of_a_client() -> None:
    assert accuracies(client([3, 1, 0], [1, 2])) == pytest.approx(
        {"uniform": (1 + 2) / (2 + 3), "local": 1.25 / 2.25, "test_split": 0.5, "whole": 4 / 6}
    )


def test_what_cannot_be_measured_is_absent() -> None:
    assert set(accuracies(client([3, 1, 0], []))) == {"uniform", "local", "whole"}
    assert set(accuracies(client([0, 0, 0, 5], []))) == {"whole"}


def test_what_is_not_asked_for_is_absent() -> None:
    found = accuracies(client([3, 1, 0], [1, 2]), metrics=("test_split", "local"))
    assert found == pytest.approx({"local": 1.25 / 2.25, "test_split": 0.5})


def test_metrics_over_clients() -> None:
    locals_ = [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.0]
    metrics = personal_metrics([{"local": value} for value in locals_] + [{"uniform": 0.5}])
    mean = 6.5 / 11
    assert metrics["personal/accuracy_local"] == pytest.approx(mean)
    variance = sum((value - mean) ** 2 for value in locals_) / 11
    assert metrics["personal/std"] == pytest.approx(variance**0.5)
    assert metrics["personal/worst_decile"] == pytest.approx(0.15)  # ceil(11 / 10) = 2 clients
    assert metrics["personal/accuracy_uniform"] == 0.5
    assert metrics["personal/std_uniform"] == 0.0
    assert not any("test_split" in name for name in metrics)


def test_accuracy_on_the_whole_test_split_over_clients() -> None:
    metrics = personal_metrics([{"whole": 0.25}, {"whole": 0.75}])
    assert metrics == {
        "personal/accuracy_whole": 0.5,
        "personal/std_whole": 0.25,
        "personal/worst_decile_whole": 0.25,
    }


def test_without_clients_there_are_no_metrics() -> None:
    assert personal_metrics([]) == {}


def test_the_standard_error_of_a_stratified_sample_by_hand() -> None:
    # Class 0: 2 of 4 samples, values 1 and 3, variance 2. Class 1: 3 of 3, nothing is estimated.
    # Class 2: one of one. Class 3: 3 of 12, values 0, 0 and 3, variance 3.
    values = torch.tensor([1.0, 3.0, 5.0, 6.0, 7.0, 9.0, 0.0, 0.0, 3.0])
    labels = torch.tensor([0, 0, 1, 1, 1, 2, 3, 3, 3])
    expected = (1 - 2 / 4) * 2 / 2 + (1 - 3 / 12) * 3 / 3
    found = stratified_error(values, labels, torch.tensor([4, 3, 1, 12]))
    assert found == pytest.approx(math.sqrt(expected))


def test_estimates_and_their_errors_over_all_samples_that_can_be_drawn() -> None:
    """The mean estimate is the accuracy; the mean squared error is the mean estimated variance."""
    labels = torch.tensor([0, 0, 0, 1, 1, 1, 1])
    correct = torch.tensor([[1, 0, 1, 0, 1, 1, 0], [0, 0, 1, 1, 1, 1, 0]], dtype=torch.bool)
    clients = [client([3, 1], []), client([0, 4], [])]
    counts = torch.stack([each.class_counts for each in clients])
    kinds = ("uniform", "local", "whole")
    exact = personal_metrics(personal_accuracies(correct, samples(2, labels=labels), clients))
    scored = samples(2, size=4, labels=labels)
    estimates: dict[str, list[float]] = {kind: [] for kind in kinds}
    variances: dict[str, list[float]] = {kind: [] for kind in kinds}
    drawn = product(
        [(0, 1), (0, 2), (1, 2)], [(a, b) for a in range(3, 7) for b in range(a + 1, 7)]
    )
    for first, second in drawn:
        scored.share = torch.tensor([*first, *second])
        only_scored = torch.zeros_like(correct)
        only_scored[:, scored.share] = correct[:, scored.share]
        found = personal_metrics(personal_accuracies(only_scored, scored, clients))
        errors = standard_errors(correct[:, scored.share], scored, counts)
        for kind in kinds:
            estimates[kind].append(found[f"personal/accuracy_{kind}"])
            variances[kind].append(errors[f"personal/standard_error_{kind}"] ** 2)
    for kind in kinds:
        mean = exact[f"personal/accuracy_{kind}"]
        assert sum(estimates[kind]) / len(estimates[kind]) == pytest.approx(mean)
        squares = [(each - mean) ** 2 for each in estimates[kind]]
        expected = sum(squares) / len(squares)
        assert sum(variances[kind]) / len(variances[kind]) == pytest.approx(expected)
        assert expected > 0


def test_classes_that_are_frequent_in_the_test_split_count_more() -> None:
    """All 90 samples of class 0 are right and all 10 of class 1 wrong; the client holds 9 and 1."""
    labels = torch.tensor([0] * 90 + [1] * 10)
    scored = samples(2, labels=labels, metrics=("uniform", "local"))
    (found,) = personal_accuracies((labels == 0)[None], scored, [client([9, 1], [])])
    assert found == pytest.approx({"uniform": 90 / 100, "local": 9 * 90 / (9 * 90 + 1 * 10)})
