"""Training of a classifier at the server: a step by hand, the order of features, divergence."""

import logging

import pytest
import torch

from fedexp.core.messages import Tensors
from fedexp.core.server_training import train_classifier


def linear(weights: Tensors, z: torch.Tensor) -> torch.Tensor:
    return z @ weights["w"].T


def test_one_step_by_hand() -> None:
    # The logits are 0, so both classes have probability 1/2, and the gradient is
    # (p - y) z / 2 for each of the two features.
    features, labels = torch.tensor([[1.0, 2.0], [3.0, 0.0]]), torch.tensor([0, 1])
    start = {"w": torch.zeros(2, 2)}
    found = train_classifier(linear, start, features, labels, 1, 2, 0.4, torch.Generator())["w"]
    slope = torch.tensor([[-0.5, -1.0], [0.5, 1.0]]) + torch.tensor([[1.5, 0.0], [-1.5, 0.0]])
    torch.testing.assert_close(found, -0.4 * slope / 2)
    assert not start["w"].any()


def test_each_feature_is_seen_once_an_epoch() -> None:
    """With tiny steps the order does not matter, and the steps add up."""
    features, labels = torch.eye(5), torch.tensor([0, 1, 1, 0, 1])
    draw = torch.Generator().manual_seed(0)
    steps = [5, 2]
    one, other = (
        train_classifier(
            linear,
            {"w": torch.zeros(2, 5)},
            features,
            labels,
            3,
            size,
            1e-4,
            draw,
        )["w"]
        for size in steps
    )
    assert one.sign().tolist() == other.sign().tolist()
    # An epoch in one batch has the mean of five gradients; in batches of 2, 2 and 1 single means.
    assert other.abs().min() > 1.5 * one.abs().min()


def test_training_that_diverges_is_undone_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    features, labels = torch.tensor([[1.0, 2.0], [3.0, 0.0]]), torch.tensor([0, 1])
    start = {"w": torch.ones(2, 2)}
    with caplog.at_level(logging.WARNING):
        found = train_classifier(
            linear, start, 1e30 * features, labels, 3, 1, 1e30, torch.Generator()
        )
    assert torch.equal(found["w"], start["w"])
    assert "a classifier diverged and is undone" in caplog.text
