import math
from typing import Literal

import pytest
import torch
import torch.nn.functional as F
from support.draws import draw64
from torch import Tensor

from fedexp.losses.semantic import Distance, Normalizer, cpdr, rpcl

# Three clients, four classes: class 2 is held by one client, class 3 by nobody.
HOLDS = torch.tensor([[1, 0, 1, 0], [1, 1, 0, 0], [0, 1, 0, 0]], dtype=torch.bool)
LABELS = torch.tensor([0, 1, 2, 3, 0])


def example() -> tuple[Tensor, Tensor]:
    """Five features [5, 6], and relational prototypes [3, 4, 6] for ``HOLDS``."""
    return draw64(5, 6), draw64(3, 4, 6, seed=1).masked_fill(~HOLDS.unsqueeze(-1), 0)


def slow_rpcl(z: Tensor, y: Tensor, r: Tensor, holds: Tensor, tau: float, spread: Tensor) -> float:
    """The loss with U = ``spread`` [K, C], sample by sample and prototype by prototype."""
    losses = []
    for feature, label in zip(z, y.tolist(), strict=True):
        own = total = 0.0
        for k, j in holds.nonzero().tolist():
            norms = math.hypot(*feature.tolist()) * math.hypot(*r[k, j].tolist())
            similarity = float(feature @ r[k, j]) / norms / float(spread[k, j])
            total += math.exp(similarity / tau)
            own += math.exp(similarity / tau) if j == label else 0.0
        if own:
            losses.append(-math.log(own / total))
    return sum(losses) / len(losses)


def slow_spread(z: Tensor, r: Tensor) -> Tensor:
    spread = torch.zeros(r.shape[:2], dtype=torch.float64)
    for k in range(len(r)):
        for j in range(r.shape[1]):
            spread[k, j] = sum(math.dist(q.tolist(), r[k, j].tolist()) for q in z) / len(z)
    return spread


def gradient(loss: Tensor, z: Tensor) -> Tensor:
    return torch.autograd.grad(loss, z)[0]


def of_length_one(vectors: Tensor) -> Tensor:
    """Each vector of the last dimension divided by its length; a zero vector stays."""
    rows = vectors.flatten(0, -2).tolist()
    unit = [[x / (math.hypot(*row) or 1.0) for x in row] for row in rows]
    return torch.tensor(unit, dtype=torch.float64).reshape(vectors.shape)


def test_rpcl_of_unit_vectors_agrees_with_loops() -> None:
    z, r = example()
    spread = slow_spread(of_length_one(z), of_length_one(r))
    mean_length = sum(math.hypot(*row) for row in z.tolist()) / len(z)
    expected = mean_length * slow_rpcl(z, LABELS, r, HOLDS, 0.05, spread)
    assert rpcl(z, LABELS, r, HOLDS, 0.05, "unit").item() == pytest.approx(expected, rel=1e-9)


def test_the_gradient_of_unit_rpcl_does_not_depend_on_the_length_of_features() -> None:
    """Features and prototypes 1,000 times as long: the same gradient; with batch a millionth."""

    def slopes(factor: float, normalizer: Normalizer) -> Tensor:
        z, r = example()
        z = (factor * z).requires_grad_()
        return gradient(rpcl(z, LABELS, factor * r, HOLDS, 5.0, normalizer), z)

    torch.testing.assert_close(slopes(1000, "unit"), slopes(1, "unit"))
    ratio = slopes(1e5, "batch").norm() / slopes(100, "batch").norm()
    assert ratio.item() == pytest.approx(1e-6, rel=0.01)


@pytest.mark.parametrize("normalizer", ["batch", "none", "given"])
@pytest.mark.parametrize("tau", [0.05, 0.5])
def test_rpcl_agrees_with_loops(tau: float, normalizer: Literal["batch", "none"]) -> None:
    z, r = example()
    spread = {
        "batch": slow_spread(z, r),
        "none": torch.ones(3, 4, dtype=torch.float64),
        "given": 1 + draw64(3, 4).abs(),
    }[normalizer]
    argument = normalizer if normalizer in ("batch", "none") else spread
    value = rpcl(z, LABELS, r, HOLDS, tau, argument)
    assert value.item() == pytest.approx(slow_rpcl(z, LABELS, r, HOLDS, tau, spread), rel=1e-9)


def test_rpcl_defaults() -> None:
    z, r = example()
    assert torch.equal(rpcl(z, LABELS, r, HOLDS), rpcl(z, LABELS, r, HOLDS, 0.05, "batch"))


def test_rpcl_gradient_by_finite_differences_of_the_loops() -> None:
    # U stays that of the unmoved features: it is a constant for the gradient
    z, r = example()
    z.requires_grad_()
    slopes = gradient(rpcl(z, LABELS, r, HOLDS, 0.3), z)
    frozen, step = slow_spread(z.detach(), r), 1e-6
    for i in range(5):
        for dimension in range(6):
            values = []
            for sign in (1, -1):
                moved = z.detach().clone()
                moved[i, dimension] += sign * step
                values.append(slow_rpcl(moved, LABELS, r, HOLDS, 0.3, frozen))
            slope = (values[0] - values[1]) / (2 * step)
            assert slopes[i, dimension].item() == pytest.approx(slope, rel=1e-5, abs=1e-8)


@pytest.mark.parametrize("normalizer", ["batch", "none", "unit"])
def test_rpcl_pulls_to_the_own_class_and_pushes_from_the_other(normalizer: Normalizer) -> None:
    own, other = torch.tensor([[1.0, 0.0], [2.0, 0.2]]), torch.tensor([[0.0, 1.0], [-1.0, 1.0]])
    relational, holds = torch.stack([own, other], dim=1), torch.ones(2, 2, dtype=torch.bool)
    z = torch.tensor([[1.0, 1.0]], requires_grad=True)
    loss = rpcl(z, torch.tensor([0]), relational, holds, 0.05, normalizer)
    moved = z - 1e-3 * gradient(loss, z)
    assert (F.cosine_similarity(moved, own) > F.cosine_similarity(z, own)).all()
    assert (F.cosine_similarity(moved, other) < F.cosine_similarity(z, other)).all()


@pytest.mark.parametrize("normalizer", ["batch", "none", "unit"])
@pytest.mark.parametrize("length", [0.1, 1.0, 30.0])
def test_rpcl_moves_every_sample_that_has_a_prototype(
    length: float, normalizer: Normalizer
) -> None:
    r = draw64(3, 4, 64, seed=1).float() * length
    z = (draw64(20, 64).float() * length).requires_grad_()
    loss = rpcl(z, torch.arange(20) % 4, r, HOLDS, normalizer=normalizer)
    moved = gradient(loss, z).norm(dim=1) > 0
    assert moved.tolist() == [label != 3 for label in range(4)] * 5


@pytest.mark.parametrize("term", ["rpcl", "cpdr"])
def test_samples_without_a_prototype_are_left_out(term: str) -> None:
    z, r = example()
    known = HOLDS.any(dim=0)

    def loss(z: Tensor, y: Tensor, holds: Tensor) -> Tensor:
        return rpcl(z, y, r, holds, 0.05, "none") if term == "rpcl" else cpdr(z, y, r[0], holds)

    holds = HOLDS if term == "rpcl" else known
    z.requires_grad_()
    whole = loss(z, LABELS, holds)
    kept = known[LABELS]
    assert kept.tolist() == [True, True, True, False, True]
    torch.testing.assert_close(whole, loss(z[kept], LABELS[kept], holds))
    assert not gradient(whole, z)[~kept].any()

    nothing = loss(z, LABELS, torch.zeros_like(holds))
    assert nothing.item() == 0
    assert torch.equal(gradient(nothing, z), torch.zeros_like(z))


def test_a_feature_equal_to_its_prototype_has_a_finite_loss() -> None:
    # U of this prototype is 0
    z = torch.tensor([[1.0, 0.0]], requires_grad=True)
    relational = torch.tensor([[[1.0, 0.0], [0.0, 1.0]]])
    loss = rpcl(z, torch.tensor([0]), relational, torch.ones(1, 2, dtype=torch.bool))
    assert loss.isfinite()
    assert gradient(loss, z).isfinite().all()


# z = (1, 3), o = (0, 1): the difference is (1, 2).
@pytest.mark.parametrize(
    ("distance", "value", "slopes"),
    [
        ("mse", 2.5, [1.0, 2.0]),
        ("l1", 3.0, [1.0, 1.0]),
        ("l2", math.sqrt(5), [1 / math.sqrt(5), 2 / math.sqrt(5)]),
    ],
)
def test_cpdr_by_hand(distance: Distance, value: float, slopes: list[float]) -> None:
    z = torch.tensor([[1.0, 3.0], [5.0, 5.0]], dtype=torch.float64, requires_grad=True)
    consistent = torch.tensor([[9.0, 9.0], [0.0, 1.0], [7.0, 7.0]], dtype=torch.float64)
    loss = cpdr(z, torch.tensor([1, 2]), consistent, torch.tensor([True, True, False]), distance)
    assert loss.item() == pytest.approx(value)
    known, unknown = gradient(loss, z).tolist()
    assert known == pytest.approx(slopes)
    assert unknown == [0, 0]


@pytest.mark.parametrize("distance", ["mse", "l1", "l2"])
def test_cpdr_is_a_mean_and_has_no_gradient_at_the_prototype(distance: Distance) -> None:
    z = torch.tensor([[1.0, 3.0], [0.0, 1.0]], requires_grad=True)
    consistent, y, holds = torch.tensor([[0.0, 1.0]]), torch.tensor([0, 0]), torch.tensor([True])
    loss = cpdr(z, y, consistent, holds, distance)
    assert loss.item() == pytest.approx(cpdr(z[:1], y[:1], consistent, holds, distance).item() / 2)
    assert gradient(loss, z)[1].tolist() == [0, 0]
