import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from fedexp.core.forward import Forward
from fedexp.core.token_rows import IGNORED, by_token, scored_rows
from fedexp.losses.cross_entropy import CrossEntropy

TARGETS = torch.tensor([[0, IGNORED, 2], [IGNORED, 1, 1]])


def batch(real: Tensor | None = None) -> Forward:
    generator = torch.Generator().manual_seed(0)
    z, logits = torch.randn(2, 3, 4, generator=generator), torch.randn(2, 3, 5, generator=generator)
    return Forward(z, logits, TARGETS, real)


def test_each_token_is_a_row() -> None:
    given, found = batch(), by_token(batch())
    assert found.targets.tolist() == [0, 0, 2, 0, 1, 1]
    assert found.real is not None
    assert found.real.tolist() == [1, 0, 1, 0, 1, 1]
    assert torch.equal(found.z[4], given.z[1, 1])
    assert torch.equal(found.logits[2], given.logits[0, 2])


def test_tokens_of_padding_are_left_out() -> None:
    found = by_token(batch(torch.tensor([1.0, 0.0])))
    assert found.real is not None
    assert found.real.tolist() == [1, 0, 1, 0, 0, 0]


def test_the_loss_is_torch_s_with_an_ignored_index() -> None:
    loss = CrossEntropy()(by_token(batch()))
    expected = F.cross_entropy(batch().logits.transpose(1, 2), TARGETS, ignore_index=IGNORED)
    torch.testing.assert_close(loss, expected)
    of_first = CrossEntropy()(by_token(batch(torch.tensor([1.0, 0.0]))))
    torch.testing.assert_close(
        of_first, F.cross_entropy(batch().logits[0, [0, 2]], TARGETS[0, ::2])
    )


def test_scored_rows_of_tokens_and_of_samples() -> None:
    z = batch().z
    targets, rows = scored_rows(TARGETS, z)
    assert targets.tolist() == [0, 2, 1, 1]
    assert torch.equal(rows, torch.stack([z[0, 0], z[0, 2], z[1, 1], z[1, 2]]))
    labels = torch.tensor([3, 4])
    same, features = scored_rows(labels, z)
    assert same is labels
    assert features is z


@pytest.mark.parametrize("scored", [0, 6])
def test_all_or_none_scored(scored: int) -> None:
    targets = torch.full((2, 3), 1 if scored else IGNORED)
    assert len(scored_rows(targets)[0]) == scored
    assert torch.isfinite(CrossEntropy()(by_token(batch()._replace(targets=targets))))
