"""FedAwS's server step against hand values, and in federations."""

import math

import pytest
import torch
import torch.nn.functional as F
from support.federations import federate
from support.plain_loop import SETTING, PlainLoop, assert_same
from support.plain_mlp import descend, features
from torch import Tensor

from fedexp.core.client_protocol import Batch
from fedexp.core.messages import Tensors
from fedexp.errors import InputError
from fedexp.heads.spread_out import crowding, spread
from fedexp.testing import check_part

SMALL = ["clients.count=4", "clients.per_round=3", "local.epochs=1", "data.subset=200"]
FEDAWS = [*SMALL, "algorithm=fedaws"]


def on_circle(*degrees: float) -> torch.Tensor:
    angles = torch.tensor([math.radians(each) for each in degrees], dtype=torch.float64)
    return torch.stack((angles.cos(), angles.sin()), dim=1)


def test_the_regularizer_by_hand() -> None:
    """The cosines are 0.5, 0 and sqrt(3) / 2; with the margin 1 their squares count twice."""
    vectors = 3 * on_circle(0, 60, 90)
    expected = 2 * (0.5**2 + 0 + 0.75)
    assert crowding(vectors, 1.0).item() == pytest.approx(expected)
    assert crowding(vectors, 0.4).item() == pytest.approx(2 * (math.sqrt(0.75) - 0.6) ** 2)
    assert crowding(vectors, 1.0, nearest=1).item() == pytest.approx(0.25 + 2 * 0.75)
    assert crowding(vectors, 1.0, nearest=9).item() == pytest.approx(expected)


def test_a_step_by_hand() -> None:
    """Two unit vectors at 60 degrees: each is pushed by 4 * 0.5 along the other's tangent part."""
    one, other = on_circle(0, 60)
    moved = one - 0.1 * 4 * 0.5 * (other - 0.5 * one)
    expected = moved / moved.norm()
    found = spread(torch.stack((one, other)), 1.0, 0.1, None)
    torch.testing.assert_close(found[0], expected)
    assert found[0] @ found[1] < 0.5


def test_vectors_beyond_the_margin_do_not_move() -> None:
    vectors = on_circle(0, 120, 240)
    torch.testing.assert_close(spread(2 * vectors, 1.0, 0.1, None), vectors)


def test_equal_vectors_make_no_nan() -> None:
    found = spread(torch.ones(3, 2), 1.0, 0.1, None)
    assert found.isfinite().all()
    assert spread(torch.ones(1, 2), 1.0, 0.1, 1).isfinite().all()


def test_the_server_spreads_the_average() -> None:
    one = federate(*FEDAWS)
    other = federate(
        *SMALL,
        "algorithm=fedavg",
        "loss=positive",
        "head=cosine",
        "head.scale.init=1",
        "head.scale.trainable=false",
    )
    for federation in (one, other):
        federation.run_round(1)
    for name, value in other.server.weights.items():
        expected = (
            spread(value.double(), 1.0, 0.1, None).float() if name == "head.weight" else value
        )
        torch.testing.assert_close(one.server.weights[name], expected)


def test_two_rounds_by_plain_pytorch() -> None:
    """Clients pull features to their class; the server spreads the average of class vectors."""
    loop, federation = PlainLoop("algorithm=fedaws"), federate(*SETTING, "algorithm=fedaws")
    weights = loop.start

    def loss(w: Tensors, batch: Batch, _: int) -> Tensor:
        own = F.cosine_similarity(features(w, batch[0]), w["head.weight"][batch[1]])
        return F.relu(0.9 - own).square().mean()

    for round, cohort in loop.cohorts(2):
        federation.run_round(round)
        models = {k: descend(weights, loop.batches(round, k), loss) for k in cohort}
        weights = loop.mean(models, cohort, weights)
        rows = weights["head.weight"].requires_grad_()
        total = torch.zeros(())
        for b in range(10):
            for c in set(range(10)) - {b}:
                distance = 1 - F.cosine_similarity(rows[b], rows[c], dim=0)
                total = total + F.relu(1 - distance).square()
        (slope,) = torch.autograd.grad(total, rows)
        moved = (rows - 0.1 * slope).detach()
        weights["head.weight"] = moved / moved.norm(dim=1, keepdim=True)
        assert_same(federation.server.weights, weights)


def test_classes_of_different_clients_stay_apart() -> None:
    """Each client has one class, and every one pulls the features to its class."""
    words = ["clients.count=10", "clients.per_round=10", "partition=shards"]
    words += ["partition.classes_per_client=1", "algorithm=fedaws", "optimizer.lr=0.1"]
    crowded = []
    for step in (0.1, 1e-9):
        federation = federate(*words, f"head.step={step}")
        for round in range(1, 5):
            metrics = federation.run_round(round).metrics
        assert metrics["global/accuracy"] > 0.5
        crowded.append(crowding(federation.server.weights["head.weight"], 1.0).item())
    assert crowded[0] < 0.5 * crowded[1]


@pytest.mark.parametrize("other", ["fedper", "fedbabu", "local"])
def test_a_head_that_is_not_sent_is_refused(other: str) -> None:
    with pytest.raises(InputError, match=r"^head=spread_out: the server spreads .* are not sent"):
        federate(*SMALL, "head=spread_out", f"personalization={other}")


@pytest.mark.slow
def test_the_contract() -> None:
    check_part("algorithm=fedaws", "head.nearest=2", "head.scale.trainable=true")
