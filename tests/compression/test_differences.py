"""What a receiver has after some rounds, and error feedback on quadratic functions."""

import pytest
import torch
from torch import Tensor

from fedexp.compression.compressor import Compressor
from fedexp.compression.differences import Differences
from fedexp.compression.sign_sgd import SignSGD
from fedexp.compression.top_k import TopK
from fedexp.core.messages import Tensors, count_bytes


def differences(compressor: Compressor, feedback: bool = True) -> Differences:
    return Differences(compressor, {"w", "empty"}, 0, "test", feedback)


def test_only_trained_parameters_that_the_receiver_has_are_encoded() -> None:
    base = {"w": torch.zeros(3), "mean": torch.zeros(3), "empty": torch.zeros(0)}
    weights = {
        "w": torch.tensor([1.0, 2.0, 4.0]),
        "mean": torch.tensor([1.0, 2.0, 4.0]),  # a buffer
        "count": torch.tensor(7),
        "empty": torch.zeros(0),
    }
    sender = differences(TopK(share=0.3, error_feedback=True))
    encoded = sender.encode(weights, base, {}, 1, 0)
    arrived = sender.decode(encoded, base, 1, 0)
    assert list(arrived) == list(weights)
    assert arrived["w"].tolist() == [0.0, 0.0, 4.0]
    assert arrived["mean"].tolist() == [1.0, 2.0, 4.0]
    assert arrived["count"].equal(torch.tensor(7))
    assert (
        count_bytes(*encoded.values()) == (4 + 1) + 3 * 4 + 8
    )  # a value and an index; a buffer; an int64
    new = sender.encode({"w": weights["w"]}, {}, {}, 1, 0)
    assert count_bytes(*new.values()) == 3 * 4
    assert sender.decode(new, {}, 1, 0)["w"].tolist() == [1.0, 2.0, 4.0]


def test_lost_differences_are_added_to_the_next_ones() -> None:
    """Top-1 of (1, 2, 4) leaves (1, 2, 0). With (1, 1, 1) that is (2, 3, 1)."""
    sender = differences(TopK(share=0.3, error_feedback=True))
    base, memory = {"w": torch.tensor([10.0, 10.0, 10.0])}, {}
    sender.encode({"w": torch.tensor([11.0, 12.0, 14.0])}, base, memory, 1, 0)
    assert memory["w/lost"].tolist() == [1.0, 2.0, 0.0]
    encoded = sender.encode({"w": torch.tensor([11.0, 11.0, 11.0])}, base, memory, 2, 0)
    assert sender.decode(encoded, base, 2, 0)["w"].tolist() == [10.0, 13.0, 10.0]
    assert memory["w/lost"].tolist() == [2.0, 0.0, 1.0]


def test_without_error_feedback_nothing_is_remembered() -> None:
    memory: Tensors = {}
    sender = differences(TopK(share=0.3, error_feedback=False), feedback=False)
    sender.encode({"w": torch.tensor([1.0, 2.0, 4.0])}, {"w": torch.zeros(3)}, memory, 1, 0)
    assert memory == {}


def descend(
    compressor: Compressor, gradients: list[Tensor], feedback: bool, steps: int, rate: float
) -> Tensor:
    """x after so many steps of gradient descent with compressed steps.

    gradients: [d, d + 1] for each client: (A, b) of its gradient A x - b.
    """
    sender = differences(compressor, feedback)
    x, memories = torch.ones(3, dtype=torch.float64), [{} for _ in gradients]
    for step in range(steps):
        arrived = []
        for client, (given, memory) in enumerate(zip(gradients, memories, strict=True)):
            own = {"w": x - rate * (given[:, :3] @ x - given[:, 3])}
            encoded = sender.encode(own, {"w": x}, memory, step, client)
            arrived.append(sender.decode(encoded, {"w": x}, step, client)["w"])
        x = torch.stack(arrived).mean(dim=0)
    return x


@pytest.mark.slow
def test_top_k_diverges_where_error_feedback_converges() -> None:
    """Example 1 of Beznosikov et al., "On Biased Compression for Distributed Learning".

    f_i(x) = <a_i, x>^2 + |x|^2 / 4. From (1, 1, 1) the largest entries of the three clients'
    gradients point the wrong way: x is multiplied by 1 + 11 rate / 6 in each step.
    """
    a = [torch.tensor(each).double() for each in ([-3, 2, 2], [2, -3, 2], [2, 2, -3])]
    clients = [
        torch.cat([2 * torch.outer(each, each) + torch.eye(3) / 2, torch.zeros(3, 1)], dim=1)
        for each in a
    ]
    top_1 = TopK(share=0.3, error_feedback=True)
    apart = descend(top_1, clients, feedback=False, steps=100, rate=0.01)
    torch.testing.assert_close(apart, torch.full((3,), (1 + 0.11 / 6) ** 100).double())
    assert descend(top_1, clients, feedback=True, steps=3000, rate=0.01).norm() < 1e-6


@pytest.mark.slow
@pytest.mark.parametrize("feedback", [False, True])
def test_signs_stop_away_from_the_optimum_without_error_feedback(feedback: bool) -> None:
    """f_i(x) = |x - b_i|^2 / 2: the optimum is the mean of the b_i."""
    targets = torch.tensor([[6.0, 0.0, 0.0], [0.0, 1.0, -2.0], [-3.0, 2.0, 5.0]]).double()
    clients = [torch.cat([torch.eye(3).double(), each.view(3, 1)], dim=1) for each in targets]
    compressor = SignSGD(error_feedback=True)
    end = descend(compressor, clients, feedback, steps=4000, rate=0.005)
    distance = (end - targets.mean(dim=0)).norm().item()
    assert distance < 0.1 if feedback else distance > 0.3
