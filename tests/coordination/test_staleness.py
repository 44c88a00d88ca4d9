import pytest
import torch

from fedexp.coordination.staleness import hinge, polynomial, rebased
from fedexp.core.messages import Update


def test_weights_by_hand() -> None:
    assert [polynomial(tau, 0.5) for tau in (0, 3, 8)] == pytest.approx([1, 1 / 2, 1 / 3])
    assert [polynomial(tau, 0.0) for tau in (0, 3)] == [1, 1]
    # Xie et al., 2019: 1 up to b, then 1 / (a (t - tau - b) + 1), here a = 10 and b = 4
    assert [hinge(tau, 4, 10.0) for tau in (0, 4, 5, 6)] == pytest.approx([1, 1, 1 / 11, 1 / 21])


def test_a_rebased_update_is_the_current_model_plus_the_weighted_step() -> None:
    sent = {"w": torch.tensor([5.0, 1.0]), "variance": torch.tensor(2.0), "steps": torch.tensor(7)}
    base = {"w": torch.tensor([1.0, 3.0]), "variance": torch.tensor(9.0), "steps": torch.tensor(1)}
    now = {"w": torch.tensor([10.0, 20.0]), "variance": torch.tensor(1.0), "steps": torch.tensor(4)}
    extras = {"loss": {"a": torch.ones(1)}}
    found = rebased(Update(3, 4, sent, extras), base, now, 0.5, frozenset({"w"}))
    assert found.weights["w"].tolist() == [10 + 0.5 * 4, 20 + 0.5 * -2]
    assert found.weights["variance"] is sent["variance"]  # 1 + 0.5 (2 - 9) would be negative
    assert found.weights["steps"] is sent["steps"]
    assert (found.client, found.num_samples, found.extras) == (3, 4, extras)
    assert sent["w"].tolist() == [5, 1]
