"""FedPHP's loss against hand values."""

import math
from typing import Any

import pytest
import torch
from support.federations import begin_client, federate

from fedexp.core.forward import Forward, Outputs
from fedexp.errors import InputError
from fedexp.losses.inherited import Inherited, squared_mmd

ONE, OTHER = torch.tensor([[0.0], [2.0]]), torch.tensor([[1.0], [2.0]])


def kernel(square: float) -> float:
    """The mean square over the 12 pairs of different rows of 0, 2, 1, 2 is 22 / 12."""
    return sum(math.exp(-square / (22 / 12 * width)) for width in (0.25, 0.5, 1, 2, 4))


def test_the_discrepancy_by_hand() -> None:
    """The squares are 0, 4, 4, 0 in the first model, 0, 1, 1, 0 in the other, 1, 4, 1, 0 across."""
    first, other = 2 * kernel(0) + 2 * kernel(4), 2 * kernel(0) + 2 * kernel(1)
    across = kernel(1) + kernel(4) + kernel(1) + kernel(0)
    expected = (first + other - 2 * across) / 4
    assert squared_mmd(ONE, OTHER, None).item() == pytest.approx(expected, rel=1e-5)


def test_padding_does_not_count() -> None:
    padded = [torch.cat((z, torch.full((3, 1), 7.0))) for z in (ONE, OTHER)]
    real = torch.tensor([1.0, 1, 0, 0, 0])
    torch.testing.assert_close(squared_mmd(*padded, real), squared_mmd(ONE, OTHER, None))
    assert squared_mmd(*padded, torch.zeros(5)).item() == 0


def test_equal_features_have_no_discrepancy() -> None:
    z = torch.randn(5, 3, generator=torch.Generator().manual_seed(0), requires_grad=True)
    found = squared_mmd(z, z.detach(), None)
    found.backward()
    assert found.item() == pytest.approx(0, abs=1e-6)
    assert z.grad is not None
    assert z.grad.isfinite().all()
    same = torch.ones(3, 2, requires_grad=True)
    squared_mmd(same, same.detach(), None).backward()
    assert same.grad is not None
    assert same.grad.isfinite().all()


def test_soft_labels_by_hand() -> None:
    """p's logits 0 and 4 log 3 divided by 4 give the shares 1/4 and 3/4."""
    logits, target = torch.tensor([[0.0, 0.0]]), torch.tensor([0])
    inherited = Outputs(torch.zeros(1, 1), torch.tensor([[0.0, 4 * math.log(3)]]))
    batch = Forward(torch.zeros(1, 1), logits, target)
    assert Inherited(1.0, "kd", 4.0)(batch, previous=inherited).item() == pytest.approx(math.log(2))
    logits = torch.tensor([[0.0, math.log(3)]])  # the own shares are 1/4 and 3/4, too
    entropy = 0.25 * math.log(4) + 0.75 * math.log(4 / 3)
    batch = Forward(torch.zeros(1, 1), logits, target)
    found = Inherited(0.25, "kd", 4.0)(batch, previous=inherited).item()
    assert found == pytest.approx(0.75 * math.log(4) + 0.25 * entropy)


def test_soft_labels_are_over_the_classes_that_the_client_s_head_includes() -> None:
    """The private model's head excludes the same classes as the trained one's."""
    words = ["algorithm=fedphp", "loss.transfer=kd", "partition=shards", "data.subset=200"]
    words += ["head=etf", "head.adapt=true", "head.missing=exclude", "clients.count=4"]
    federation = federate(*words, "partition.classes_per_client=3", "clients.per_round=2")
    for round in (1, 2):
        assert 0 < federation.run_round(round).metrics["train/loss"] < 10
    module = begin_client(federation.engine, 0, federation.server.broadcast(3))
    private: Any = module.frozen_copies["previous"].head
    assert 0 < private.included.sum() < 10
    for name in ("included", "phi"):
        assert torch.equal(getattr(private, name), module.head.get_buffer(name))


def test_without_a_weight_it_is_cross_entropy() -> None:
    batch = Forward(ONE, torch.tensor([[0.0, 0.0], [0.0, 0.0]]), torch.tensor([0, 1]))
    for transfer in ("mmd", "kd"):
        loss = Inherited(0.0, transfer, 4.0)(batch, previous=Outputs(OTHER, batch.logits))  # type: ignore[arg-type]
        assert loss.item() == pytest.approx(math.log(2))


def test_it_needs_a_private_model() -> None:
    with pytest.raises(InputError, match="loss=inherited: learns from a private model; use pers"):
        federate("loss=inherited")
