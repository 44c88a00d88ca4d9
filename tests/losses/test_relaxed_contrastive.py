"""FedRCL's loss by loops and by hand, and the levels that it asks the backbone for."""

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from support.draws import draw64
from support.federations import begin_client, federate
from torch import Tensor, nn

from fedexp.core.forward import Forward
from fedexp.errors import InputError
from fedexp.losses.relaxed_contrastive import RelaxedContrastive, relaxed_contrast

SMALL = ["clients.count=4", "clients.per_round=3", "data.subset=100", "local.epochs=1"]


def by_loops(
    features: Tensor, targets: list[int], tau: float, threshold: float, negatives: int, pairs: str
) -> tuple[list[float], list[float]]:
    """Both terms, sample by sample and pair by pair."""
    contrasts, divergences = [], []
    for i, own in enumerate(features):
        same, other = [], []
        for j, each in enumerate(features):
            cosine = float(own @ each / own.norm() / each.norm())
            if targets[j] != targets[i]:
                other.append(cosine)
            elif j != i:
                same.append(cosine)
        if pairs == "hardest":
            same, other = sorted(same)[:1], sorted(other)[-negatives:]
        repelling = sum(math.exp(s / tau) for s in other)
        attracting = [math.exp(s / tau) for s in same or [1.0]]
        terms = [-math.log(a / (a + repelling)) for a in attracting]
        contrasts.append(sum(terms) / len(terms))
        close = [math.exp((s - 1) / tau) for s in same if s >= threshold]
        divergences.append(math.log(1 + sum(close)))
    return contrasts, divergences


@pytest.mark.parametrize("pairs", ["hardest", "all"])
@pytest.mark.parametrize(("tau", "threshold", "negatives"), [(0.5, 0.1, 2), (0.2, -0.3, 3)])
def test_both_terms_agree_with_loops(
    pairs: Any, tau: float, threshold: float, negatives: int
) -> None:
    features, targets = draw64(9, 4, seed=0), [0, 1, 0, 2, 1, 0, 3, 1, 0]
    found = relaxed_contrast(features, torch.tensor(targets), tau, threshold, negatives, pairs)
    contrasts, divergences = by_loops(features, targets, tau, threshold, negatives, pairs)
    assert found.contrast.tolist() == pytest.approx(contrasts, rel=1e-9)
    assert found.divergence.tolist() == pytest.approx(divergences, rel=1e-9)
    assert 0 < sum(each > 0 for each in divergences) < 9  # the threshold divides them


def plane(*degrees: float) -> Tensor:
    """Vectors of several lengths in the plane, at these angles."""
    angles = torch.tensor(degrees, dtype=torch.float64).deg2rad()
    lengths = torch.arange(1, len(degrees) + 1, dtype=torch.float64).unsqueeze(1)
    return lengths * torch.stack([angles.cos(), angles.sin()], dim=1)


def test_values_by_hand() -> None:
    # Class 0 at 0, 30 and 90 degrees, class 1 at 120: alone. Cosines of sample 0: its least similar
    # partner 0, the other class -1/2; of sample 1: 1/2 and 0; of the last: 1/2 at most, then 0.
    features, targets = plane(0, 30, 90, 120), torch.tensor([0, 0, 0, 1])
    contrast, divergence = relaxed_contrast(features, targets, 0.5, 0.5)
    root = math.sqrt(3) / 2
    assert contrast.tolist() == pytest.approx(
        [
            math.log(1 + math.exp(-1)),  # (-1/2 - 0) / tau
            math.log(1 + math.exp(-1)),  # (0 - 1/2) / tau
            math.log(1 + math.exp(root / 0.5)),
            math.log(1 + math.exp((root - 1) / 0.5) + math.exp((0 - 1) / 0.5)),
        ]
    )
    # Least similar partners: 0, 1/2 (at the threshold, up to rounding), 0, none.
    wider = relaxed_contrast(features, targets, 0.5, 0.49).divergence
    assert wider.tolist() == pytest.approx([0, math.log(1 + math.exp(-1)), 0, 0])
    # Of all pairs, 30 degrees is above the threshold too.
    of_all = relaxed_contrast(features, targets, 0.5, 0.51, pairs="all").divergence
    close = math.log(1 + math.exp((root - 1) / 0.5))
    assert of_all.tolist() == pytest.approx([close, close, 0, 0])
    assert divergence.shape == (4,)


def test_a_pair_above_the_threshold_is_pushed_apart() -> None:
    features = plane(0, 20).requires_grad_()
    terms = relaxed_contrast(features, torch.tensor([0, 0]), 0.5, 0.9)
    (slopes,) = torch.autograd.grad(terms.divergence.sum(), features)
    moved = features - 0.1 * slopes
    assert F.cosine_similarity(moved[0], moved[1], dim=0) < math.cos(math.radians(20))
    assert not relaxed_contrast(features, torch.tensor([0, 0]), 0.5, 0.95).divergence.any()


@pytest.mark.parametrize("pairs", ["hardest", "all"])
def test_a_sample_alone_in_its_class_is_only_repelled(pairs: Any) -> None:
    features, targets = plane(0, 60, 90).requires_grad_(), torch.tensor([0, 1, 1])
    terms = relaxed_contrast(features, targets, 0.5, 0.0, pairs=pairs)
    assert terms.divergence[0] == 0
    # The positive is its similarity to itself, 1; the others are at 1/2 and 0.
    expected = math.log(1 + math.exp(-1) + math.exp(-2))
    assert terms.contrast[0].item() == pytest.approx(expected)
    (slopes,) = torch.autograd.grad(terms.contrast[0], features)
    moved = features - 0.1 * slopes
    assert F.cosine_similarity(moved[0], moved[1], dim=0) < 0.5


@pytest.mark.parametrize("pairs", ["hardest", "all"])
def test_a_batch_of_one_class_or_of_one_sample(pairs: Any) -> None:
    for features in (plane(0, 30, 90), plane(10)):
        features.requires_grad_()
        targets = torch.zeros(len(features), dtype=torch.int64)
        terms = relaxed_contrast(features, targets, 0.05, 0.5, pairs=pairs)
        assert terms.contrast.tolist() == [0] * len(features)
        (slopes,) = torch.autograd.grad(terms.contrast.sum() + terms.divergence.sum(), features)
        assert slopes.isfinite().all()


@pytest.mark.parametrize("pairs", ["hardest", "all"])
def test_gradient_by_finite_differences(pairs: Any) -> None:
    targets = torch.tensor([0, 1, 0, 2, 1])

    def total(features: Tensor) -> Tensor:
        terms = relaxed_contrast(features, targets, 0.5, -0.5, pairs=pairs)
        return terms.contrast.sum() + terms.divergence.sum()

    assert torch.autograd.gradcheck(total, draw64(5, 3, seed=3).requires_grad_())


@pytest.mark.parametrize("pairs", ["hardest", "all"])
def test_padding_is_in_no_pair(pairs: Any) -> None:
    features, targets = draw64(5, 3, seed=3), torch.tensor([0, 1, 0, 2, 1])
    plain = relaxed_contrast(features, targets, 0.5, -0.5, pairs=pairs)
    # Copies of the first sample, as engine=vectorized pads: hardest pairs, were they real.
    padded = relaxed_contrast(
        torch.cat([features, -features[:1], features[:1]]),
        torch.cat([targets, targets[:1], targets[1:2]]),
        0.5,
        -0.5,
        pairs=pairs,
        real=torch.tensor([1.0] * 5 + [0.0] * 2),
    )
    for found, expected in zip(padded, plain, strict=True):
        torch.testing.assert_close(found[:5], expected)


def test_the_loss_is_the_mean_over_levels() -> None:
    logits, y = draw64(5, 4, seed=1), torch.tensor([0, 1, 0, 3, 0])
    levels = (draw64(5, 6, seed=2), draw64(5, 3, seed=3))
    terms = [relaxed_contrast(level, y, 0.5, 0.0, 1) for level in levels]
    expected = F.cross_entropy(logits, y) + sum(
        each.contrast.mean() + 2 * each.divergence.mean() for each in terms
    ) / len(levels)
    loss = RelaxedContrastive(0.5, 0.0, 2.0, 1, "hardest")
    found = loss(Forward(levels[1], logits, y, None, levels))
    torch.testing.assert_close(found, expected)


# In a federation.


class TwoStages(nn.Module):
    """A backbone with two levels, each before its ReLU."""

    def __init__(self, inputs: int) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(inputs, 12), nn.Linear(12, 8)

    def forward(self, x: Tensor) -> Tensor:
        return self.forward_levels(x)[0]

    def forward_levels(self, x: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
        first = self.first(x.flatten(1))
        second = self.second(first.relu())
        return second.relu(), (first, second)


def two_stages(input_shape: tuple[int, ...]) -> nn.Module:
    return TwoStages(torch.Size(input_shape).numel())


STAGES = [
    f"model._target_={__name__}.two_stages",
    *(f"~model.{key}" for key in ("hidden", "feature_dim", "rectify", "batch_norm")),
]


@pytest.mark.parametrize("engine", ["serial", "vectorized", "trainer"])
def test_an_independent_loop_takes_the_same_steps(engine: str) -> None:
    plain = ["optimizer.momentum=0", "optimizer.weight_decay=0", "optimizer.lr=0.05"]
    overrides = [*SMALL, *STAGES, *plain, "algorithm=fedrcl", "loss.temperature=0.5"]
    federation = federate(*overrides, f"engine={engine}")
    start = federation.server.broadcast(1)
    updates = {u.client: u.weights for u in federation.engine.train(range(4), start)}
    for client, found in updates.items():
        weights = {n: w.clone().requires_grad_() for n, w in start.weights.items()}
        module = begin_client(federate(*overrides).engine, client, start)
        for x, y in module.data.local_batches(1, 16):
            first = F.linear(
                x.flatten(1), weights["backbone.first.weight"], weights["backbone.first.bias"]
            )
            second = F.linear(
                first.relu(), weights["backbone.second.weight"], weights["backbone.second.bias"]
            )
            head = weights["head.linear.weight"], weights["head.linear.bias"]
            loss = F.cross_entropy(F.linear(second.relu(), *head), y)
            for level in (first, second):
                terms = relaxed_contrast(level, y, 0.5, 0.7, 2)
                loss = loss + (terms.contrast.mean() + terms.divergence.mean()) / 2
            slopes = torch.autograd.grad(loss, list(weights.values()))
            for weight, slope in zip(weights.values(), slopes, strict=True):
                weight.data -= 0.05 * slope
        for name, weight in weights.items():
            torch.testing.assert_close(found[name], weight.detach(), atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("model", [[], STAGES], ids=["one level", "two levels"])
def test_levels_reach_the_loss_in_full_precision(
    model: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[Tensor, ...]] = []

    def spy(self: RelaxedContrastive, batch: Forward) -> Tensor:
        seen.append(batch.levels)
        return batch.logits.sum()

    monkeypatch.setattr(RelaxedContrastive, "forward", spy)
    bf16 = "engine.precision=bf16-mixed"
    federation = federate(*SMALL, *model, "algorithm=fedrcl", bf16)
    federation.run_round(1)
    assert {len(levels) for levels in seen} == {2 if model else 1}
    assert {level.dtype for levels in seen for level in levels} == {torch.float32}


def test_other_losses_get_no_levels() -> None:
    federation = federate(*SMALL, *STAGES)
    module = begin_client(federation.engine, 0, federation.server.broadcast(1))
    batch = next(iter(module.data.local_batches(1, 16)))
    assert module.data_loss(batch)[1].levels == ()


def test_nothing_more_is_sent() -> None:
    plain, contrasted = federate(*SMALL), federate(*SMALL, "algorithm=fedrcl")
    one, other = plain.run_round(1).metrics, contrasted.run_round(1).metrics
    for name in ("cost/upload_bytes", "cost/download_bytes"):
        assert one[name] == other[name]


@pytest.mark.parametrize(
    "override",
    ["loss.temperature=0", "loss.threshold=1.5", "loss.beta=-1", "loss.negatives=0"],
)
def test_wrong_values_are_named(override: str) -> None:
    with pytest.raises(InputError, match=override):
        federate(*SMALL, "algorithm=fedrcl", override)


def test_a_wrong_word_is_named() -> None:
    with pytest.raises(InputError, match=r"loss\.pairs=some: .*'hardest' or 'all'"):
        federate(*SMALL, "algorithm=fedrcl", "loss.pairs=some")
