import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from support.draws import draw64
from support.federations import begin_client, federate
from torch import Tensor

from fedexp.core.forward import Forward, Outputs
from fedexp.errors import InputError
from fedexp.losses.ntd import NotTrueDistillation, not_true_distillation

SMALL = ["clients.count=6", "clients.per_round=4", "data.subset=300", "local.epochs=1"]
LABELS = torch.tensor([0, 1, 2, 3, 0])


def slow_distillation(local: list[float], glob: list[float], label: int, tau: float) -> float:
    """KL(global || local) over the classes that are not true and that neither model leaves out."""
    pairs = zip(local, glob, strict=True)
    kept = [pair for c, pair in enumerate(pairs) if c != label and all(map(math.isfinite, pair))]
    own, other = ([math.exp(pair[k] / tau) for pair in kept] for k in (0, 1))
    return sum(
        q / sum(other) * math.log((q / sum(other)) / (p / sum(own)))
        for p, q in zip(own, other, strict=True)
    )


@pytest.mark.parametrize("tau", [0.5, 1.0, 3.0])
def test_the_distillation_agrees_with_loops(tau: float) -> None:
    local, glob = draw64(5, 4, seed=0), draw64(5, 4, seed=1)
    found = not_true_distillation(local, glob, LABELS, tau)
    rows = zip(local.tolist(), glob.tolist(), LABELS.tolist(), strict=True)
    assert found.tolist() == pytest.approx([slow_distillation(*r, tau) for r in rows], rel=1e-9)


def test_value_and_gradient_by_hand() -> None:
    # Without the true class 0 the local model says 1/4, 3/4 and the global one 1/2, 1/2. The
    # gradient of the divergence is local minus global.
    local = torch.tensor([[5.0, 0.0, math.log(3)]], requires_grad=True)
    glob = torch.tensor([[-2.0, 1.0, 1.0]])
    loss = not_true_distillation(local, glob, torch.tensor([0]), 1.0)
    assert loss.item() == pytest.approx(0.5 * math.log(2) + 0.5 * math.log(2 / 3))
    (slopes,) = torch.autograd.grad(loss.sum(), local)
    assert slopes[0].tolist() == pytest.approx([0, -0.25, 0.25], abs=1e-6)


def test_gradient_by_finite_differences() -> None:
    local, glob = draw64(5, 4, seed=0).requires_grad_(), draw64(5, 4, seed=1)
    assert torch.autograd.gradcheck(lambda x: not_true_distillation(x, glob, LABELS, 2.0), local)


def test_the_logits_of_the_true_class_do_not_matter() -> None:
    local, glob = draw64(5, 4, seed=0), draw64(5, 4, seed=1)
    moved = [each.scatter(1, LABELS.unsqueeze(1), 7.0) for each in (local, glob)]
    one, other = (not_true_distillation(*pair, LABELS, 1.0) for pair in ((local, glob), moved))
    assert torch.equal(one, other)


@pytest.mark.parametrize("side", ["local", "global", "both"])
def test_a_class_left_out_is_left_out_on_both_sides(side: str) -> None:
    local, glob = draw64(5, 4, seed=0), draw64(5, 4, seed=1)
    if side != "global":
        local[:, 3] = -math.inf
    if side != "local":
        glob[:, 3] = -math.inf
    y = torch.tensor([0, 1, 2, 0, 1])
    local.requires_grad_()
    found = not_true_distillation(local, glob, y, 2.0)
    rows = zip(local.tolist(), glob.tolist(), y.tolist(), strict=True)
    assert found.tolist() == pytest.approx([slow_distillation(*r, 2.0) for r in rows], rel=1e-9)
    (slopes,) = torch.autograd.grad(found.sum(), local)
    (expected,) = torch.autograd.grad(
        not_true_distillation(local[:, :3], glob[:, :3], y, 2.0).sum(), local
    )
    torch.testing.assert_close(slopes, expected)
    assert not slopes[:, 3].any()


def test_without_any_other_class_the_distillation_is_zero() -> None:
    local = torch.tensor([[1.0, -math.inf, -math.inf]], requires_grad=True)
    found = not_true_distillation(local, torch.tensor([[1.0, 2.0, 3.0]]), torch.tensor([0]), 1.0)
    assert found.item() == 0
    assert torch.autograd.grad(found.sum(), local)[0].tolist() == [[0, 0, 0]]


@pytest.mark.parametrize("scale", [1e3, 1e30])
def test_large_logits_have_a_finite_loss_and_gradient(scale: float) -> None:
    local = (draw64(5, 4, seed=0) * scale).float().requires_grad_()
    found = not_true_distillation(local, (draw64(5, 4, seed=1) * scale).float(), LABELS, 1.0)
    assert found.isfinite().all()
    assert torch.autograd.grad(found.sum(), local)[0].isfinite().all()


def test_the_loss_is_the_weighted_sum() -> None:
    z, logits, glob = draw64(5, 6, seed=0), draw64(5, 4, seed=1), draw64(5, 4, seed=2)
    batch = Forward(z, logits, LABELS)
    found = NotTrueDistillation(0.3, 2.0)(batch, **{"global": Outputs(z, glob)})
    kl = not_true_distillation(logits, glob, LABELS, 2.0).mean()
    torch.testing.assert_close(found, F.cross_entropy(logits, LABELS) + 0.3 * 4 * kl)


# In a federation.


def terms(module: Any, batch: Any) -> tuple[Tensor, list[Tensor]]:
    """The distillation on this batch and its gradient."""
    z = module.backbone(batch[0])
    glob = module.frozen_copies(batch[0])["global"].logits
    kl = not_true_distillation(module.head(z), glob, batch[1], 1.0).mean()
    parameters = [value for _, value in module.trained_parameters()]
    slopes = torch.autograd.grad(kl, parameters, allow_unused=True, materialize_grads=True)
    return kl.detach(), list(slopes)


def test_the_distillation_starts_at_zero_each_round_and_grows() -> None:
    federation = federate(*SMALL, "algorithm=fedntd")
    engine: Any = federation.engine
    for round in (1, 2):
        module = begin_client(engine, 0, federation.server.broadcast(round)).train()
        batch = next(iter(module.data.local_batches(round, 16)))
        kl, slopes = terms(module, batch)
        assert kl == 0
        assert max(slope.abs().max() for slope in slopes) < 1e-6

        optimizer = module.configure_optimizers()
        module.training_step(batch, 0).backward()
        optimizer.step()
        optimizer.zero_grad()
        kl, slopes = terms(module, batch)
        assert kl > 0
        assert max(slope.abs().max() for slope in slopes) > 1e-4
        federation.run_round(round)


def test_one_step_is_fedavg_and_two_are_not() -> None:
    """Before the first step the two models agree, and the gradient of the distillation is 0."""
    for epochs in (1, 2):
        small = [*SMALL, f"local.epochs={epochs}", "local.batch_size=300"]
        fedavg, fedntd = federate(*small), federate(*small, "algorithm=fedntd")
        for federation in (fedavg, fedntd):
            federation.run_round(1)
        apart = max(
            (weight - fedntd.server.weights[name]).abs().max()
            for name, weight in fedavg.server.weights.items()
        )
        assert apart < 1e-7 if epochs == 1 else apart > 1e-6


@pytest.mark.parametrize("personalization", ["feddbe", "gpfl"])
def test_changed_features_before_the_head_are_refused(personalization: str) -> None:
    with pytest.raises(InputError, match=r"loss=ntd: .* changes the features before the head"):
        federate(f"personalization={personalization}", "loss=ntd")


@pytest.mark.parametrize("override", ["loss.beta=-1", "loss.temperature=0"])
def test_wrong_values_are_named(override: str) -> None:
    with pytest.raises(InputError, match=override):
        federate(*SMALL, "algorithm=fedntd", override)
