"""FedKD: its loss and gradients by hand, its private matrix, and its compression."""

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from support.federations import assert_engine_agrees, federate
from support.plain_loop import LR, SETTING, PlainLoop, assert_same
from support.second_model import of_model
from support.small_federations import SMALL, copy

from fedexp.contract import Network
from fedexp.core.forward import Forward, Outputs
from fedexp.core.messages import Tensors
from fedexp.errors import InputError
from fedexp.heads.linear import Linear
from fedexp.losses.adaptive_mutual import AdaptiveMutual
from fedexp.personalization.own_model import own_model


def made(matrix: list[list[float]]) -> AdaptiveMutual:
    loss = AdaptiveMutual()
    loss.create(Network(torch.nn.Identity(), Linear(2, 2, bias=True), 2, 2))
    with torch.no_grad():
        loss.transform.weight.copy_(torch.tensor(matrix))
    return loss


def test_the_loss_by_hand() -> None:
    # The own model predicts (1/4, 3/4), the shared one (1/2, 1/2); the label is 1.
    # W z = (2, 1) of the shared z = (1, 1), and z of the own model is (0, 1): the mean square is 2.
    batch = Forward(torch.ones(1, 2), torch.zeros(1, 2), torch.tensor([1]))
    own = Outputs(torch.tensor([[0.0, 1.0]]), torch.tensor([[0.0, math.log(3)]]))
    found = made([[2.0, 0.0], [0.0, 1.0]])(batch, own=own)
    labels_v, labels_w = math.log(4 / 3), math.log(2)
    to_v = 0.5 * math.log(2) + 0.5 * math.log(2 / 3)
    to_w = 0.25 * math.log(1 / 2) + 0.75 * math.log(3 / 2)
    total = labels_v + labels_w
    assert found.item() == pytest.approx(total + (to_v + 2) / total + (to_w + 2) / total)


def test_each_model_is_trained_by_its_own_loss() -> None:
    """The gradient for a model's outputs is that of its loss with the other's outputs constant."""
    draw = torch.Generator().manual_seed(3)
    z, logits, own_z, own_logits = (torch.randn(3, 2, generator=draw) for _ in range(4))
    y, matrix = torch.tensor([0, 1, 1]), [[0.5, 0.2], [-0.3, 1.0]]
    values = [each.requires_grad_() for each in (z, logits, own_z, own_logits)]
    loss = made(matrix)
    found = torch.autograd.grad(
        loss(Forward(z, logits, y), own=Outputs(own_z, own_logits)),
        [*values, loss.transform.weight],
    )
    w = torch.tensor(matrix, requires_grad=True)

    def cross(each: torch.Tensor) -> torch.Tensor:
        return -each.log_softmax(1)[range(3), y].mean()

    def gap(student: torch.Tensor, teacher: torch.Tensor) -> torch.Tensor:
        p, q = teacher.softmax(1), student.softmax(1)
        return (p * (p / q).log()).sum(1).mean() + (own_z - z @ w.T).square().mean()

    both = cross(logits) + cross(own_logits)
    of_w = cross(logits) + gap(logits, own_logits) / both
    of_v = cross(own_logits) + gap(own_logits, logits) / both
    expected = [*torch.autograd.grad(of_w, [z, logits], retain_graph=True)]
    expected += torch.autograd.grad(of_v, [own_z, own_logits], retain_graph=True)
    expected += torch.autograd.grad(of_w, [w])
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other)


def test_three_rounds_by_plain_pytorch() -> None:
    """Both models and the matrix are trained, and each direction sends steps by singular values."""
    words = ["algorithm=fedkd", "rounds=3", "compression.first=0.5", "download.first=0.5"]
    federation, loop = federate(*SETTING, *words), PlainLoop(*words)
    module: Any = loop.federation.engine.resources.load_global(loop.federation.server.broadcast(1))
    start, matrix = copy(module.weights), "loss.transform.weight"
    held = x = of_model(start)
    private = {k: {**own_model(start), "W": start[matrix]} for k in range(5)}
    trained: set[int] = set()

    def outputs(weights: Tensors, inputs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        body = {n.removeprefix("backbone."): w for n, w in weights.items() if "backbone" in n}
        z = torch.func.functional_call(module.backbone, body, (inputs,))
        return z, F.linear(z, weights["head.linear.weight"], weights["head.linear.bias"])

    for round, cohort in loop.cohorts(3):
        share = 0.5 + (0.98 - 0.5) * round / 3
        held = {n: held[n] + truncated(x[n] - held[n], share) for n in x}
        total = sum(loop.samples[k] for k in cohort)
        x = {n: torch.zeros_like(w) for n, w in x.items()}
        for k in cohort:
            w, v = held, {n: value for n, value in private[k].items() if n != "W"}
            transform = private[k]["W"]
            for inputs, y in loop.batches(round, k):
                w, v = ({n: t.detach().requires_grad_() for n, t in m.items()} for m in (w, v))
                transform = transform.detach().requires_grad_()
                (z_w, of_w), (z_v, of_v) = (outputs(each, inputs) for each in (w, v))
                ce_w, ce_v = F.cross_entropy(of_w, y), F.cross_entropy(of_v, y)
                gap = F.mse_loss(z_v, z_w @ transform.T)
                logs = of_w.log_softmax(dim=1), of_v.log_softmax(dim=1)
                loss_w = ce_w + (divergence(*logs) + gap) / (ce_w + ce_v)
                loss_v = ce_v + (divergence(*logs[::-1]) + gap) / (ce_w + ce_v)
                of_shared = [*w.values(), transform]
                *found, slope = torch.autograd.grad(loss_w, of_shared, retain_graph=True)
                other = torch.autograd.grad(loss_v, list(v.values()))
                w = {n: (t - LR * g).detach() for (n, t), g in zip(w.items(), found, strict=True)}
                v = {n: (t - LR * g).detach() for (n, t), g in zip(v.items(), other, strict=True)}
                transform = (transform - LR * slope).detach()
            private[k], trained = {**v, "W": transform}, trained | {k}
            for n in x:
                sent = held[n] + truncated(w[n] - held[n], share)
                x[n] = x[n] + loop.samples[k] / total * sent
        federation.run_round(round)
    assert_same(federation.server.weights, x)
    for k in trained:
        found = copy(federation.store.model(k))
        assert_same({n: found[n] for n in x} | {"W": found[matrix]}, private[k])


def divergence(student: torch.Tensor, teacher: torch.Tensor) -> torch.Tensor:
    """KL(teacher || student) of two logarithms of probabilities [B, C], the mean over the batch."""
    return (teacher.exp() * (teacher - student)).sum(dim=1).mean()


def truncated(step: torch.Tensor, share: float) -> torch.Tensor:
    """The step by its largest singular values, if its two matrices are smaller than the step."""
    if step.ndim < 2:
        return step
    u, s, v = torch.linalg.svd(step, full_matrices=False)
    energy, k = s.square().sum(), 0
    while s[:k].square().sum() <= share * energy and k < len(s):
        k += 1
    if k * sum(step.shape) >= step.numel():
        return step
    return u[:, :k] @ torch.diag(s[:k]) @ v[:k]


def test_the_matrix_and_the_own_model_stay_at_the_client() -> None:
    federation = federate(*SMALL, "algorithm=fedkd")
    federation.run_round(1)
    assert all(n.startswith(("backbone.", "head.")) for n in federation.server.weights)
    first, second = (
        federation.store.model(client)["loss.transform.weight"]
        for client in federation.engine.resources.store.clients_with_state
    )
    assert not torch.equal(first, second)


def test_what_is_sent_is_compressed_in_both_directions() -> None:
    whole = federate(*SMALL).run_round(1).metrics
    federation = federate(*SMALL, "algorithm=fedkd")
    first, second = (federation.run_round(round).metrics for round in (1, 2))
    assert first["cost/upload_bytes"] < 0.5 * whole["cost/upload_bytes"]
    assert second["cost/download_bytes"] < first["cost/download_bytes"]


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["vectorized", "trainer"])
def test_engines_agree(engine: str) -> None:
    assert_engine_agrees(
        engine,
        [*SMALL, "loss=adaptive_mutual", "personalization=second_model", "optimizer.lr=0.01"],
        rounds=1,
    )


def test_it_needs_a_second_model() -> None:
    with pytest.raises(InputError, match=r"^loss=adaptive_mutual: needs a second model"):
        federate("loss=adaptive_mutual")
