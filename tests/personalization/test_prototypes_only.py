from typing import Any

import pytest
import torch
from support.federations import take_step
from support.small_federations import copy, moved, personal, personalized
from torch import nn

from fedexp.core.messages import PartMessage
from fedexp.core.part import Clients, Model, Setting
from fedexp.core.sockets import Network
from fedexp.errors import InputError
from fedexp.heads.linear import Linear
from fedexp.losses.prototype_align import PrototypeAlign
from fedexp.measures.scoring.predictions import predicted
from fedexp.personalization.prototypes_only import PrototypesOnly

SETTING = Setting(
    seed=0,
    rounds=1,
    num_classes=3,
    feature_dim=2,
    num_clients=1,
    clients_per_round=1,
    clients=Clients.of(torch.ones(1, 3, dtype=torch.int64)),
    model=Model({}),
)


def received(holds: list[bool]) -> PrototypesOnly:
    part = PrototypesOnly("present")
    part.setup(SETTING)
    loss = PrototypeAlign(1.0, "exclude", "uniform", "none", "trained")
    loss.setup(SETTING)
    part.create(Network(nn.Identity(), Linear(2, 3, bias=True), 2, 3), loss)
    loss.prototypes = torch.tensor([[0.0, 0.0], [3.0, 4.0], [1.0, 0.0]])
    loss.holds = torch.tensor(holds)
    part.receive(PartMessage(2, {}))
    return part


def test_the_nearest_prototype_is_predicted() -> None:
    z = torch.tensor([[0.0, 0.0], [3.0, 3.0], [0.9, 0.0]])
    logits = received([True, True, True]).personalize(z, torch.zeros(3, 3))
    expected = torch.tensor([[0, 5, 1], [18**0.5, 1, 13**0.5], [0.9, 20.41**0.5, 0.1]])
    torch.testing.assert_close(logits, -expected)
    assert logits.argmax(1).tolist() == [0, 1, 2]


def test_a_class_without_a_prototype_is_never_predicted() -> None:
    logits = received([False, True, True]).personalize(torch.zeros(1, 2), torch.zeros(1, 3))
    assert logits.tolist() == [[-torch.inf, -5.0, -1.0]]
    without_any = received([False] * 3).personalize(torch.zeros(4, 2), torch.zeros(4, 3))
    assert predicted(without_any).tolist() == [-1] * 4


def test_no_weights_are_sent_either_way() -> None:
    federation = personalized("prototypes_only")
    for round in (1, 2):
        message = federation.server.broadcast(round)
        assert message.weights == {}
        updates = list(federation.engine.train([0, 1], message))
        assert all(update.weights == {} and set(update.extras) == {"loss"} for update in updates)
        take_step(federation.server, updates)
    assert message.extras.keys() == {"loss"}
    assert federation.server.weights == {}


def test_predictions_are_by_the_latest_prototypes_and_the_clients_own_features() -> None:
    federation = personalized("prototypes_only")
    engine: Any = federation.engine
    take_step(federation.server, engine.train([0, 1], federation.server.broadcast(1)))
    known = federation.server.broadcast(1).extras["loss"]
    held = known["holds"].nonzero().flatten()
    labels = federation.data.test.labels
    predictions = personal(federation, 1)
    assert list(predictions) == [0, 1]
    for client, found in predictions.items():
        module = federation.module
        module.load(federation.store.model(client))
        inputs = torch.cat([x for x, _ in federation.data.test.batches(1000)])
        with torch.no_grad():
            z = module.eval().backbone(inputs)
        distances = (z[:, None] - known["prototypes"][held][None]).square().sum(2)
        assert torch.equal(found.correct, held[distances.argmin(1)] == labels)


@pytest.mark.parametrize("engine", ["serial", "vectorized"])
def test_the_heads_accuracy_is_logged_beside_that_of_the_prototypes(engine: str) -> None:
    federation = personalized("prototypes_only", f"engine={engine}", "measure.personal.every=1")
    metrics = federation.run_round(1).metrics
    inputs = torch.cat([x for x, _ in federation.data.test.batches(1000)])
    labels = federation.data.test.labels
    found: dict[str, list[float]] = {"uniform": [], "whole": []}
    for client in federation.store.clients_with_model:
        federation.module.load(federation.store.model(client))
        with torch.no_grad():
            correct = federation.module.eval()(inputs).argmax(1) == labels
        own = (federation.data.clients[client].class_counts > 0)[labels]
        found["uniform"].append(correct[own].double().mean().item())
        found["whole"].append(correct.double().mean().item())
    for kind, accuracies in found.items():
        expected = sum(accuracies) / len(accuracies)
        assert metrics[f"personal/accuracy_head_{kind}"] == pytest.approx(expected)
        assert metrics[f"personal/accuracy_{kind}"] != pytest.approx(expected)
    plain = personalized("local", "measure.personal.every=1").run_round(1).metrics
    assert not any("accuracy_head" in name for name in plain)


@pytest.mark.parametrize("engine", ["serial", "vectorized"])
def test_received_prototypes_are_those_of_the_clients_last_training(engine: str) -> None:
    """Client 0 trains in rounds 1 and 2, client 1 in 1 and 3; each row is what it received last."""
    options = ["personalization.score_with=received", "loss.first=random", f"engine={engine}"]
    federation = personalized("prototypes_only", *options)
    sent = {}
    for round, cohort in ((1, [0, 1]), (2, [0]), (3, [1])):
        message = federation.server.broadcast(round)
        sent[round] = message.extras["loss"]["prototypes"].clone()
        updates = list(federation.engine.train(cohort, message))
        assert all(update.weights == {} for update in updates)
        take_step(federation.server, updates)
    present = federation.server.broadcast(3).extras["loss"]["prototypes"]
    inputs = torch.cat([x for x, _ in federation.data.test.batches(1000)])
    labels = federation.data.test.labels
    differs = []
    for client, found in personal(federation, 3).items():
        federation.module.load(federation.store.model(client))
        with torch.no_grad():
            z = federation.module.eval().backbone(inputs)
        by_received, by_present = (
            (z[:, None] - each[None]).square().sum(2).argmin(1) == labels
            for each in (sent[{0: 2, 1: 3}[client]], present)
        )
        assert torch.equal(found.correct, by_received)
        differs.append(not torch.equal(by_received, by_present))
    assert differs == [True, True]


def test_it_chooses_its_loss_and_refuses_another() -> None:
    personalized("prototypes_only")
    personalized("prototypes_only", "loss=prototype_align", "loss.lam=0.1")
    with pytest.raises(InputError, match=r"^loss: .* use loss=prototype_align"):
        personalized("prototypes_only", "loss=cross_entropy")


def test_models_differ_between_clients() -> None:
    federation = personalized("prototypes_only")
    list(federation.engine.train([0, 1], federation.server.broadcast(1)))
    one, other = (copy(federation.store.model(client)) for client in (0, 1))
    assert any(name.startswith("backbone.") for name in moved(one, other))
