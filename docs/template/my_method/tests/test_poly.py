"""PolyLoss against values by hand, and the contract of a part."""

import math

import pytest
import torch
from my_method.poly import Poly

from fedexp.core.forward import Forward
from fedexp.testing import check_part


def test_a_sample_by_hand() -> None:
    logits = torch.tensor([[math.log(3.0), 0.0]])  # the target's probability is 3/4
    batch = Forward(z=torch.zeros(1, 1), logits=logits, targets=torch.tensor([0]))
    assert Poly(2.0)(batch).item() == pytest.approx(-math.log(0.75) + 2 * 0.25)
    assert Poly(0.0)(batch).item() == pytest.approx(-math.log(0.75))


def test_the_contract() -> None:
    check_part("loss=poly")
