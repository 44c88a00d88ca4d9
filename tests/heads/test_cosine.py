import math

import pytest
import torch
from support.federations import federate

from fedexp.heads.cosine import Cosine
from fedexp.heads.sphere import Scale


def test_logits_are_scaled_cosines() -> None:
    head = Cosine(2, 3, Scale(init=5, trainable=True))
    with torch.no_grad():
        head.weight.copy_(torch.tensor([[2.0, 0.0], [0.0, -0.5], [1.0, 1.0]]))
    logits = head(torch.tensor([[3.0, 4.0], [0.0, 0.0]]))
    assert logits[0].tolist() == pytest.approx([5 * 0.6, 5 * -0.8, 5 * 1.4 / math.sqrt(2)])
    assert logits[1].tolist() == [0, 0, 0]  # a zero feature, and no NaN


def test_the_length_of_a_feature_and_of_a_row_do_not_matter() -> None:
    head = Cosine(8, 3, Scale(init=20, trainable=False))
    z = torch.randn(4, 8)
    before = head(z)
    with torch.no_grad():
        head.weight.mul_(torch.tensor([[0.1], [1.0], [7.0]]))
    torch.testing.assert_close(head(z * 9), before)


def test_rows_start_as_unit_vectors_and_are_the_prototypes() -> None:
    head = Cosine(16, 5, Scale(init=20, trainable=True))
    torch.testing.assert_close(head.prototypes().norm(dim=1), torch.ones(5))
    assert not head.prototypes().requires_grad
    assert (head.prototypes() @ head.prototypes().T - torch.eye(5)).max() < 0.99


def test_it_trains_like_any_layer() -> None:
    federation = federate("head=cosine", "clients.count=4", "clients.per_round=4", "local.epochs=2")
    before = {name: w.clone() for name, w in federation.server.weights.items()}
    metrics = [federation.run_round(round).metrics for round in (1, 2)][-1]
    for name in ("head.weight", "head.scale"):
        assert not torch.equal(before[name], federation.server.weights[name])
    assert math.isfinite(metrics["train/loss"])
    assert metrics["global/accuracy"] > 0.5
