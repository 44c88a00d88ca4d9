"""FedAwS's loss against hand values."""

import pytest
import torch

from fedexp.core.forward import Forward
from fedexp.losses.positive import Positive


def test_it_by_hand() -> None:
    """The label's logits are 0.4, 0.95 and -0.1; with the margin 0.9 the losses are 0.25, 0, 1."""
    logits = torch.tensor([[0.4, 9.0], [-9.0, 0.95], [-0.1, 0.0]], requires_grad=True)
    targets = torch.tensor([0, 1, 0])
    loss = Positive(0.9)(Forward(torch.zeros(3, 1), logits, targets))
    assert loss.item() == pytest.approx(1.25 / 3)
    loss.backward()
    assert logits.grad is not None
    torch.testing.assert_close(logits.grad, torch.tensor([[-1.0, 0], [0, 0], [-2.0, 0]]) / 3)


def test_padding_does_not_count() -> None:
    logits, targets = torch.tensor([[0.4, 0.0], [7.0, 7.0]]), torch.tensor([0, 0])
    batch = Forward(torch.zeros(2, 1), logits, targets, torch.tensor([1.0, 0.0]))
    assert Positive(0.9)(batch).item() == pytest.approx(0.25)
