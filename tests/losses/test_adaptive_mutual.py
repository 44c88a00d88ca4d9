"""FedKD: its loss and gradients by hand, its private matrix, and its compression."""

import math

import pytest
import torch
from support.federations import assert_engine_agrees, federate
from support.small_federations import SMALL

from fedexp.contract import Network
from fedexp.core.forward import Forward, Outputs
from fedexp.errors import InputError
from fedexp.heads.linear import Linear
from fedexp.losses.adaptive_mutual import AdaptiveMutual
from fedexp.testing import check_part


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


@pytest.mark.slow
def test_the_contract() -> None:
    check_part("algorithm=fedkd", "clients.per_round=4")
