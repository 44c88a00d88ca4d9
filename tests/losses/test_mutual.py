"""FML: its loss by hand, and both models against a plain loop in all engines."""

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from support.federations import federate
from support.second_model import of_model
from support.small_federations import SMALL, copy

from fedexp.core.forward import Forward, Outputs
from fedexp.core.messages import Tensors
from fedexp.errors import InputError
from fedexp.losses.mutual import Mutual
from fedexp.personalization.own_model import own_model

ETA = 0.1
PLAIN = ["optimizer.momentum=0", "optimizer.weight_decay=0", f"optimizer.lr={ETA}"]


def test_the_loss_by_hand() -> None:
    # The own model predicts (1/4, 3/4), the shared one (1/2, 1/2); the label is 1.
    own = torch.tensor([[0.0, math.log(3)]])
    found = Mutual(0.7, 0.2)(
        Forward(torch.zeros(1, 1), torch.zeros(1, 2), torch.tensor([1])),
        own=Outputs(torch.zeros(1, 1), own),
    )
    of_own = 0.7 * math.log(4 / 3) + 0.3 * 0.5 * (math.log(2) + math.log(2 / 3))
    of_shared = 0.2 * math.log(2) + 0.8 * (0.25 * math.log(1 / 2) + 0.75 * math.log(3 / 2))
    assert found.item() == pytest.approx(of_own + of_shared)


def test_padding_does_not_count() -> None:
    draw = torch.Generator().manual_seed(0)
    z, logits, own = (torch.randn(4, 3, generator=draw) for _ in range(3))
    y, real = torch.tensor([0, 2, 1, 1]), torch.tensor([1.0, 1.0, 0.0, 0.0])
    loss = Mutual(0.5, 0.5)
    padded = loss(Forward(z, logits, y, real), own=Outputs(z, own))
    plain = loss(Forward(z[:2], logits[:2], y[:2]), own=Outputs(z[:2], own[:2]))
    torch.testing.assert_close(padded, plain)


@pytest.mark.parametrize("engine", ["serial", "vectorized", "trainer"])
def test_training_equals_a_plain_loop(engine: str) -> None:
    words = [*SMALL, *PLAIN, "algorithm=fml", "local.epochs=2", "loss.alpha=0.3", "loss.beta=0.6"]
    federation = federate(*words, f"engine={engine}")
    v: Tensors = {}
    for round in (1, 2):
        message = federation.server.broadcast(round)
        model: Any = federation.engine.resources.load_global(message)
        w = copy(of_model(message.weights))
        v = v or own_model(copy(model.weights))
        assert any((v[n] - w[n]).abs().max() > 0.01 for n in w)
        batches = federation.data.clients[0].local_batches(round, 16)
        for _ in range(2):
            for batch in batches:
                v, w = stepped(model, v, w, *batch)
        updates = list(federation.engine.train([0, 1], message))
        (update,) = (each for each in updates if each.client == 0)
        assert update.weights.keys() == w.keys()
        for each in updates:
            federation.server.add(each)
        federation.server.step()
        personal = federation.store.model(0)
        for name, value in w.items():
            torch.testing.assert_close(update.weights[name], value, rtol=1e-4, atol=1e-5)
            torch.testing.assert_close(personal[name], v[name], rtol=1e-4, atol=1e-5)


def stepped(
    model: Any, v: Tensors, w: Tensors, inputs: torch.Tensor, targets: torch.Tensor
) -> tuple[Tensors, Tensors]:
    """One step of both models on a batch, each by the gradient of its own loss."""
    v, w = ({n: x.detach().requires_grad_() for n, x in each.items()} for each in (v, w))
    of_v, of_w = (torch.func.functional_call(model, each, (inputs,)) for each in (v, w))
    p_v, p_w = of_v.softmax(dim=1), of_w.softmax(dim=1)
    to_v = (p_w.detach() * (p_w.detach() / p_v).log()).sum(dim=1).mean()
    to_w = (p_v.detach() * (p_v.detach() / p_w).log()).sum(dim=1).mean()
    loss_v = 0.3 * F.cross_entropy(of_v, targets) + 0.7 * to_v
    loss_w = 0.6 * F.cross_entropy(of_w, targets) + 0.4 * to_w
    moved = []
    for loss, weights in ((loss_v, v), (loss_w, w)):
        found = torch.autograd.grad(loss, list(weights.values()))
        steps = zip(weights.items(), found, strict=True)
        moved.append({n: (x - ETA * g).detach() for (n, x), g in steps})
    return moved[0], moved[1]


def test_with_labels_alone_the_shared_model_is_that_of_fedavg() -> None:
    both = federate(*SMALL, "algorithm=fml", "loss.alpha=1", "loss.beta=1")
    plain = federate(*SMALL)
    for round in (1, 2):
        metrics = [each.run_round(round).metrics for each in (both, plain)]
        for key in ("cost/upload_bytes", "cost/download_bytes"):
            assert metrics[0][key] == metrics[1][key]
    assert both.server.weights.keys() == plain.server.weights.keys()
    for name, value in plain.server.weights.items():
        torch.testing.assert_close(both.server.weights[name], value, rtol=1e-4, atol=1e-5)


def test_one_half_needs_the_other() -> None:
    with pytest.raises(InputError, match=r"^loss=mutual: .* use personalization=second_model"):
        federate("loss=mutual")
    with pytest.raises(InputError, match=r"^personalization=second_model: .* use loss=mutual"):
        federate("personalization=second_model")


@pytest.mark.slow
@pytest.mark.parametrize(
    "others", [["algorithm=fednh"], ["regularizer=proximal", "sampler=hics"], ["head=etf"]]
)
def test_it_combines_with_other_sockets(others: list[str]) -> None:
    federation = federate(*SMALL, *others, "loss=mutual", "personalization=second_model")
    for round in (1, 2):
        assert 0 < federation.run_round(round).metrics["train/loss"] < 100
