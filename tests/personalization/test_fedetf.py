"""FedETF: a fixed simplex behind a projection; the classifier trains in tuning only."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from support.federations import assert_engine_agrees, begin_client, federate

from fedexp.errors import InputError
from fedexp.heads.projected_etf import ProjectedETF
from fedexp.heads.sphere import Scale
from fedexp.testing import check_part

SMALL = ["clients.count=4", "clients.per_round=3", "data.subset=200", "local.epochs=1"]
FEDETF = [*SMALL, "algorithm=fedetf", "personalization.cycles=1"]
CLASSIFIER = "head.weight"


def head(tuned: bool = False, dim: int | None = 5) -> ProjectedETF:
    torch.manual_seed(0)
    return ProjectedETF(6, 4, dim, Scale(init=10, trainable=True), tuned)


def test_logits_by_hand() -> None:
    part, z = head(), torch.randn(3, 6)
    u = z @ part.projection.weight.T + part.projection.bias
    expected = 10 * (u / u.norm(dim=1, keepdim=True)) @ part.weight.T
    torch.testing.assert_close(part(z), expected)
    torch.testing.assert_close(part.normalize(z).norm(dim=1), torch.ones(3))


@pytest.mark.parametrize("tuned", [False, True])
def test_the_classifier_is_a_simplex(tuned: bool) -> None:
    rows = head(tuned).prototypes()
    expected = torch.full((4, 4), -1 / 3).fill_diagonal_(1)
    torch.testing.assert_close(rows @ rows.T, expected, atol=1e-6, rtol=0)
    assert not rows.requires_grad


def test_a_simplex_needs_room() -> None:
    head(dim=3)
    with pytest.raises(InputError, match=r"head\.dim=2: is too small for 4 classes; .* least 3"):
        head(dim=2)


def test_the_balanced_loss_by_hand() -> None:
    """-log(n_y e^(logit_y) / sum_c n_c e^(logit_c)), with 1 in place of n_c = 0."""
    federation = federate(*FEDETF, "partition.beta=0.05")
    module: Any = begin_client(federation.engine, 0, federation.server.broadcast(1))
    counts = module.data.class_counts.clamp(min=1).double()
    assert (module.data.class_counts == 0).any()
    inputs, targets = next(iter(module.data.batches(30)))
    logits = module(inputs).double()
    weights = counts * logits.exp()
    expected = -(weights.gather(1, targets[:, None])[:, 0] / weights.sum(dim=1)).log().mean()
    found, _ = module.data_loss((inputs, targets))
    assert found.item() == pytest.approx(expected.item(), rel=1e-5)


def test_the_federation_does_not_train_or_send_the_classifier() -> None:
    federation = federate(*FEDETF)
    before = federation.module.weights[CLASSIFIER].clone()
    federation.run_round(1)
    assert CLASSIFIER not in federation.server.weights
    assert {"head.projection.weight", "head.scale"} <= set(federation.server.weights)
    assert torch.equal(federation.global_model(1).weights[CLASSIFIER], before)
    assert federation.store.clients_with_model
    for client in federation.store.clients_with_model:
        assert torch.equal(federation.store.model(client)[CLASSIFIER], before)


def test_without_tuning_the_classifier_is_constant() -> None:
    federation = federate(*SMALL, "head=projected_etf", "personalization=finetune")
    before = federation.module.head.weight.clone()
    federation.run_round(1)
    assert CLASSIFIER not in federation.server.weights
    module: Any = federation.engine.begin_tuning(0, federation.server.broadcast(1))
    federation.engine.fit(module, federation.engine.resources.personalization.tuning())
    assert torch.equal(module.head.weight, before)


def test_tuning_equals_a_plain_loop() -> None:
    """All but V with the local optimizer, then V by plain SGD, then the projection; a loop."""
    words = ["local.batch_size=400", "optimizer.momentum=0.5", "optimizer.lr=0.1"]
    words += ["optimizer.weight_decay=0"]
    epochs = ["personalization.classifier_epochs=2", "personalization.projection_epochs=2"]
    federation = federate(*FEDETF, *words, *epochs, "personalization.cycles=2")
    federation.run_round(1)
    message = federation.server.broadcast(1)
    engine, client = federation.engine, 1
    module: Any = engine.begin_tuning(client, message)
    engine.fit(module, federation.engine.resources.personalization.tuning())
    found = {name: value.clone() for name, value in module.weights.items()}

    start = engine.begin_tuning(client, message).weights
    weights = {name: value.detach().clone() for name, value in start.items()}
    ((inputs, targets),) = module.data.batches(1000)
    shared = [name for name in weights if name != CLASSIFIER]
    projection = ["head.projection.weight", "head.projection.bias"]
    for names, steps, momentum in (
        (shared, 1, 0.5),
        *(2 * (([CLASSIFIER], 2, 0.0), (projection, 2, 0.5))),
    ):
        velocity = {name: torch.zeros_like(weights[name]) for name in names}
        for _ in range(steps):
            point = {name: weights[name].requires_grad_() for name in names}
            logits = torch.func.functional_call(module, weights | point, (inputs,))
            slopes = torch.autograd.grad(F.cross_entropy(logits, targets), list(point.values()))
            for name, slope in zip(names, slopes, strict=True):
                velocity[name] = momentum * velocity[name] + slope
                weights[name] = (weights[name] - 0.1 * velocity[name]).detach()
    for name, value in weights.items():
        torch.testing.assert_close(found[name], value, rtol=1e-4, atol=1e-6)
    assert not torch.equal(found[CLASSIFIER], start[CLASSIFIER])


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["vectorized", "trainer"])
def test_engines_agree(engine: str) -> None:
    assert_engine_agrees(engine, FEDETF, rounds=1)


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["head=projected_etf", "head.tuned=true"], r"head\.tuned=true: .* personalization=fedetf"),
        (["personalization=fedetf"], r"personalization=fedetf: needs head=projected_etf"),
        (["algorithm=fedetf", "head.tuned=false"], r"personalization=fedetf: needs head"),
    ],
)
def test_head_and_personalization_need_each_other(words: list[str], line: str) -> None:
    with pytest.raises(InputError, match=line):
        federate(*SMALL, *words)


@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    [
        ["head=projected_etf", "personalization=ditto"],
        ["head=projected_etf", "loss=moon", "regularizer=proximal"],
        ["algorithm=fedetf", "personalization.cycles=1", "regularizer=dynamic"],
    ],
)
def test_it_combines_with_other_sockets(words: list[str]) -> None:
    federation = federate(*SMALL, *words)
    for round in (1, 2):
        assert 0 < federation.run_round(round).metrics["train/loss"] < 100


@pytest.mark.slow
def test_the_contract() -> None:
    check_part("head=projected_etf")
