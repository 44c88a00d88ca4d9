"""Predictions of a model that diverged."""

import math

import pytest
import torch

from fedexp.core.sockets import Head
from fedexp.measures.scoring.predictions import predicted, score


class Doubled(Head):
    """Logits that are twice the features."""

    def forward(self, z: torch.Tensor) -> torch.Tensor:
        return 2 * z


def test_logits_that_are_no_numbers_predict_no_class() -> None:
    nan, inf = math.nan, math.inf
    logits = torch.tensor([[nan, nan], [nan, 1.0], [-inf, 1.0], [inf, 1.0], [2.0, 2.0]])
    assert predicted(logits).tolist() == [-1, -1, 1, 0, 0]
    assert predicted(torch.tensor([[-inf, -inf], [-inf, nan]])).tolist() == [-1, -1]


@pytest.mark.parametrize("label", [0, 1])
def test_a_model_that_diverged_is_never_right(label: int) -> None:
    z = torch.full((4, 2), math.nan)
    found = score(z, 2 * z, torch.full((4,), label), Doubled(), score_head=True)
    assert found.metrics("{}") == pytest.approx({"accuracy": 0.0, "loss": math.nan}, nan_ok=True)
    assert found.head_correct is not None
    assert not found.head_correct.any()
