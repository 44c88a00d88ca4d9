"""A worked example: a client with classes 0 and 1 in the ratio 3 to 1, a test split of six.

labels   0  0  1  1  1  2
correct  1  0  1  1  0  1      per class: 1 of 2, 2 of 3, 1 of 1
"""

import math

import pytest
import torch

from fedexp.data.federated import ClientData
from fedexp.engines.predictions import Predictions
from fedexp.evaluation.personal import (
    per_class,
    personal_accuracies,
    personal_metrics,
    weighted_accuracy,
)

LABELS = torch.tensor([0, 0, 1, 1, 1, 2])
CORRECT = torch.tensor([1, 0, 1, 1, 0, 1], dtype=torch.bool)


def client(counts: list[int], test_index: list[int]) -> ClientData:
    held = torch.tensor(counts)
    empty = torch.tensor([], dtype=torch.int64)
    return ClientData(0, held, empty, torch.tensor(test_index, dtype=torch.int64), None)  # type: ignore[arg-type]


def test_per_class_counts() -> None:
    correct, total = per_class(CORRECT, LABELS, num_classes=4)
    assert correct.tolist() == [1, 2, 1, 0]
    assert total.tolist() == [2, 3, 1, 0]


def test_weighted_accuracy() -> None:
    correct, total = torch.tensor([1, 2, 1]), torch.tensor([2, 3, 1])
    # (0.75 * 1 + 0.25 * 2) / (0.75 * 2 + 0.25 * 3) = 1.25 / 2.25
    shares = torch.tensor([0.75, 0.25, 0.0])
    assert weighted_accuracy(correct, total, shares) == pytest.approx(1.25 / 2.25)
    assert math.isnan(weighted_accuracy(correct, total, torch.zeros(3)))


def test_the_accuracies_of_a_client() -> None:
    found = personal_accuracies(Predictions(CORRECT, 0.0), LABELS, client([3, 1, 0], [1, 2]))
    assert found == pytest.approx(
        {"uniform": (1 + 2) / (2 + 3), "local": 1.25 / 2.25, "test_split": 0.5, "whole": 4 / 6}
    )


def test_what_cannot_be_measured_is_absent() -> None:
    found = personal_accuracies(Predictions(CORRECT, 0.0), LABELS, client([3, 1, 0], []))
    assert set(found) == {"uniform", "local", "whole"}
    only_unseen = client([0, 0, 0, 5], [])
    assert set(personal_accuracies(Predictions(CORRECT, 0.0), LABELS, only_unseen)) == {"whole"}


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
