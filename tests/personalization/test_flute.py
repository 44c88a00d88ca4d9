"""FLUTE against hand values, against plain PyTorch, and in federations."""

import math

import pytest
import torch
import torch.nn.functional as F
from support.federations import federate
from support.plain_mlp import features
from support.small_federations import ONE_BY_ONE, ONE_STEP, SMALL, copy, train
from torch import Tensor

from fedexp.core.part import Clients, Model, Setting
from fedexp.errors import InputError
from fedexp.heads.etf import simplex_etf
from fedexp.personalization.flute import FLUTE
from fedexp.regularizers.neural_collapse import WEIGHT, collapse_distance

ETA = 0.1
OPTIONS = [*SMALL, "algorithm=flute", "personalization.head_epochs=2"]


def test_the_distance_from_neural_collapse_by_hand() -> None:
    """I / sqrt(2) is compared with (I - 1/2) on the classes that the client holds."""
    weight, both, one = torch.eye(2), torch.ones(2), torch.tensor([1.0, 0.0])
    diagonal = math.sqrt(0.5) - 0.5
    expected = math.sqrt(2 * diagonal**2 + 2 * 0.25)
    assert collapse_distance(weight, both).item() == pytest.approx(expected)
    assert collapse_distance(3 * weight, both).item() == pytest.approx(expected)
    expected = math.sqrt(diagonal**2 + 0.5)
    assert collapse_distance(weight, one).item() == pytest.approx(expected)


def test_a_simplex_has_distance_0() -> None:
    assert collapse_distance(5 * simplex_etf(4, 6), torch.ones(4)).item() < 1e-6


ENGINES = [([f"engine={name}"], 2) for name in ("serial", "vectorized", "trainer")]


@pytest.mark.parametrize(("words", "updates"), [*ENGINES, (ONE_BY_ONE, 1)])
def test_two_rounds_by_plain_pytorch(words: list[str], updates: int) -> None:
    """The classes and the distance are written here in another way than in the package."""
    federation = federate(*OPTIONS, *ONE_STEP, f"optimizer.lr={ETA}", *words)
    start = copy(federation.engine.resources.load_global(federation.server.broadcast(1)).weights)
    head = {name: value for name, value in start.items() if name.startswith("head.")}
    ((inputs, targets),) = federation.data.clients[0].batches(1000)
    holds = torch.tensor([float(label in targets) for label in range(10)])
    assert 0 < holds.sum() < 10

    def distance(weight: Tensor) -> Tensor:
        table = torch.zeros(10, 10)
        for i in range(10):
            for j in range(10):
                table[i, j] = (float(i == j) - 0.1) * holds[i] * holds[j] / 3.0
        gram = torch.einsum("id,jd->ij", weight, weight)
        return torch.sqrt(((gram / torch.sqrt((gram**2).sum()) - table) ** 2).sum())

    def loss(w: dict[str, Tensor]) -> Tensor:
        z = features(w, inputs)
        weight = w[WEIGHT]
        fit = F.cross_entropy(F.linear(z, weight, w["head.linear.bias"]), targets)
        decay = 0.0025 * (weight**2).sum()
        return fit + 0.25 * distance(weight) + decay + 0.005 * (z**2).sum() / len(z)

    def step(w: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
        w = {name: value.detach().requires_grad_() for name, value in w.items()}
        slopes = dict(zip(w, torch.autograd.grad(loss(w), list(w.values())), strict=True))
        return {n: v - ETA * slopes[n] if n.startswith(prefix) else v for n, v in w.items()}

    for round in (1, 2):
        received = copy(federation.server.weights)
        if round == 2:
            weight = head[WEIGHT].detach().requires_grad_()
            (slope,) = torch.autograd.grad(distance(weight), [weight])
            head[WEIGHT] = weight.detach() - 0.5 / updates * slope
        w = received | head
        for prefix in ("head.", "head.", ""):
            w = step(w, prefix)
        head = {name: value.detach() for name, value in w.items() if name.startswith("head.")}
        train(federation, round)
        trained = federation.store.model(0)
        for name, value in w.items():
            torch.testing.assert_close(trained[name], value.detach(), rtol=1e-3, atol=1e-5)


def test_only_the_body_is_sent() -> None:
    federation = federate(*OPTIONS)
    metrics = federation.run_round(1).metrics
    assert metrics["cost/upload_bytes"] == 2 * 4 * (64 * 128 + 128 + 128 * 64 + 64)
    assert not any(name.startswith("head.") for name in federation.server.weights)


def test_a_head_without_a_matrix_is_refused() -> None:
    with pytest.raises(InputError, match="personalization=flute: needs a linear classifier"):
        federate("personalization=flute", "head=prototype")
    with pytest.raises(InputError, match="regularizer=neural_collapse: needs a linear"):
        federate("regularizer=neural_collapse", "head=prototype")


def test_the_penalty_combines_with_a_shared_head() -> None:
    federation = federate(*SMALL, "regularizer=neural_collapse")
    assert 0 < federation.run_round(1).metrics["train/loss"] < 10


def test_an_exported_model_that_knows_no_sizes_can_be_set_up() -> None:
    nobody = Clients(torch.zeros(3, dtype=torch.int64))
    setting = Setting(0, 2, 10, 8, 3, 2, nobody, Model({}))
    assert setting.most_updates == 0
    FLUTE(1, 0.1, 0.5).setup(setting)
