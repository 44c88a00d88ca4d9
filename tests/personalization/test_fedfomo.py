"""FedFomo against hand values, against plain PyTorch, and in federations."""

from typing import Any, cast

import pytest
import torch
import torch.nn.functional as F
from support.federations import begin_client, federate
from support.plain_loop import BATCH, EPOCHS, LR, SETTING, PlainLoop, assert_same
from support.small_federations import assert_models_agree, copy, personalized, train

from fedexp.core.messages import PartMessage, PartUpdate, Tensors
from fedexp.core.part import Clients, Model, Setting
from fedexp.personalization.fedfomo import FedFomo, fomo_weights, shares
from fedexp.runtime.federation import Federation
from fedexp.testing import check_part


def part(models: int = 2, epsilon: float = 0.0, decay: float = 0.0) -> FedFomo:
    made = FedFomo(models, epsilon, decay, 0.2)
    counts = torch.ones(5, 2, dtype=torch.int64)
    made.setup(Setting(0, 5, 2, 1, 5, 5, Clients.of(counts), Model({"w": torch.Size([1])})))
    return made


def update(client: int, weights: dict[int, float] | None = None) -> PartUpdate:
    extras: Tensors = {"model/w": torch.tensor([float(client)])}
    if weights:
        extras |= {"clients": torch.tensor(list(weights))}
        extras |= {"weights": torch.tensor(list(weights.values()))}
    return PartUpdate(client, 1, {}, extras)


def chosen(made: FedFomo, client: int, round: int = 2) -> list[int]:
    found: list[int] = made.extras_to(client, PartMessage(round, {}))["clients"].tolist()
    return found


def test_weights_by_hand() -> None:
    """The gain of a model divided by its distance: 0.5 / 2 and -0.5 / 1."""
    losses, distances = torch.tensor([0.5, 1.5]), torch.tensor([2.0, 1.0])
    found = fomo_weights(torch.tensor(1.0), losses, distances)
    assert found.tolist() == [0.25, -0.5]


def test_an_equal_model_and_a_loss_that_is_not_finite_have_no_weight() -> None:
    losses = torch.tensor([1.0, 0.5, torch.nan, torch.inf])
    found = fomo_weights(torch.tensor(1.0), losses, torch.tensor([0.0, 0.0, 1.0, 1.0]))
    assert found.tolist() == [0, 0, 0, 0]


def test_shares_by_hand() -> None:
    assert shares(torch.tensor([0.25, -0.5, 0.75])).tolist() == [0.25, 0, 0.75]
    assert shares(torch.tensor([-0.5, 0.0])).tolist() == [0, 0]


def test_the_server_sums_the_weights_and_sends_the_models_with_the_largest_sums() -> None:
    made = part()
    made.aggregate([update(0, {1: 0.5, 2: -0.25}), *map(update, (1, 2, 3))])
    made.aggregate([update(0, {2: 0.125, 3: 0.25}), *map(update, (1, 2, 3))])
    assert made.affinity == {0: {1: 0.5, 2: -0.125, 3: 0.25}}
    assert chosen(made, 0) == [1, 3]
    sent = made.extras_to(0, PartMessage(2, {}))
    assert sent.keys() == {"clients", "1/w", "3/w"}
    assert sent["3/w"].item() == 3


def test_only_models_of_the_last_round_are_sent_and_never_the_client_s_own() -> None:
    made = part(models=4)
    assert made.extras_to(0, PartMessage(1, {})) == {}
    made.aggregate([update(0), update(1)])
    made.aggregate([update(2), update(3)])
    assert sorted(chosen(made, 0)) == [2, 3]
    assert chosen(made, 3) == [2]


def test_exploration_chooses_at_random_until_it_has_decayed() -> None:
    always, twice = part(models=1, epsilon=1.0), part(models=1, epsilon=1.0, decay=0.5)
    for made in (always, twice):
        made.aggregate([update(0, {1: 9.0}), *map(update, (1, 2, 3, 4))])
    assert {chosen(always, 0, round)[0] for round in range(2, 30)} == {1, 2, 3, 4}
    assert {chosen(twice, 0, round)[0] for round in range(3, 30)} == {1}
    assert chosen(always, 0) == chosen(always, 0)


def test_ties_are_broken_at_random() -> None:
    made = part(models=1)
    made.aggregate(list(map(update, (1, 2, 3))))
    assert {chosen(made, 0, round)[0] for round in range(2, 30)} == {1, 2, 3}


@pytest.fixture
def three() -> Federation:
    """A federation of four after a round of the clients 0, 2 and 3."""
    federation = personalized("fedfomo", "personalization.validation=0.25", "partition=iid")
    train(federation, 1, (0, 2, 3))
    return federation


def losses_by_hand(federation: Federation, client: int, models: list[Tensors]) -> list[float]:
    """The models' cross-entropies on the samples of the client that it does not train on."""
    module: Any = federation.module
    data = federation.data.clients[client]
    trained = set(module.data.train_index.tolist())
    index = torch.tensor([i for i in data.train_index.tolist() if i not in trained])
    inputs, targets = federation.data.train.gather(index)
    found = []
    for each in models:
        module.load(each)
        with torch.no_grad():
            found.append(F.cross_entropy(module.eval()(inputs), targets).item())
    return found


def test_the_start_by_plain_pytorch(three: Federation) -> None:
    """The own model of client 1 is still the initial model."""
    models = {client: copy(three.store.model(client)) for client in (0, 2, 3)}
    models[1] = copy(three.engine.resources.initial)
    message = three.server.broadcast(2).to_client(1)
    others = message.extras["personalization"]["clients"].tolist()
    assert sorted(others) == [0, 2, 3]

    module = begin_client(three.engine, 1, message)
    start = copy(module.weights)
    assert (three.data.clients[1].num_samples, module.data.num_samples) == (50, 38)
    own, *of_others = losses_by_hand(three, 1, [models[1], *(models[n] for n in others)])
    flat = {n: torch.cat([w.flatten() for w in m.values()]) for n, m in models.items()}
    weights = [
        (own - loss) / (flat[n] - flat[1]).norm().item()
        for n, loss in zip(others, of_others, strict=True)
    ]
    memory = three.store.memory(1, "personalization")
    torch.testing.assert_close(memory["weights"], torch.tensor(weights), rtol=1e-4, atol=1e-6)
    positive = [max(weight, 0) for weight in weights]
    assert sum(positive) > 0
    for name, value in start.items():
        expected = models[1][name].clone()
        for n, weight in zip(others, positive, strict=True):
            expected += weight / sum(positive) * (models[n][name] - models[1][name])
        torch.testing.assert_close(value, expected)


def test_a_client_s_own_trained_model_is_mixed_in_like_the_others(three: Federation) -> None:
    """Gains and distances count from the model with which the client's last training began."""
    message = three.server.broadcast(2).to_client(0)
    others = message.extras["personalization"]["clients"].tolist()
    began = copy(three.engine.resources.initial)
    models = [copy(three.store.model(client)) for client in (0, *others)]
    module = begin_client(three.engine, 0, message)
    start = copy(module.weights)
    first, *losses = losses_by_hand(three, 0, [began, *models])
    names = list(began)
    flat = [torch.cat([model[n].flatten() for n in names]) for model in (began, *models)]
    weights = [
        max((first - loss) / (model - flat[0]).norm().item(), 0)
        for loss, model in zip(losses, flat[1:], strict=True)
    ]
    assert weights[0] > 0
    expected = flat[0] + sum(
        weight / sum(weights) * (model - flat[0])
        for weight, model in zip(weights, flat[1:], strict=True)
    )
    found = torch.cat([start[n].flatten() for n in names])
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    assert len(three.store.memory(0, "personalization")["weights"]) == len(others)


def test_three_rounds_by_plain_pytorch() -> None:
    """The mixture, the steps on the samples that are not held out, and the sums of the weights."""
    words = ["algorithm=fedfomo", "personalization.epsilon=0", "clients.per_round=4"]
    federation, loop = federate(*SETTING, *words), PlainLoop(*words)
    sent: dict[int, Tensors] = {}  # the models of the last round
    start = copy(loop.federation.engine.resources.initial)
    own, began = (dict.fromkeys(range(5), start) for _ in range(2))
    sums: dict[int, dict[int, float]] = {}
    for round, cohort in loop.cohorts(3):
        trained = {}
        for k in cohort:
            data = begin_client(loop.federation.engine, k, loop.federation.server.broadcast(1)).data
            models = {k: own[k], **{n: model for n, model in sent.items() if n != k}}
            first, *losses = losses_by_hand(loop.federation, k, [began[k], *models.values()])
            gains = {}
            for (n, model), loss in zip(models.items(), losses, strict=True):
                square = sum((model[name] - began[k][name]).square().sum() for name in model)
                gains[n] = (first - loss) / float(square) ** 0.5 if square else 0.0
            total = sum(max(gain, 0) for gain in gains.values())
            y = dict(began[k])
            for n, gain in gains.items():
                share = max(gain, 0) / total if total else 0.0
                y = {name: y[name] + share * (models[n][name] - began[k][name]) for name in y}
                if n != k:
                    row = sums.setdefault(k, {})
                    row[n] = row.get(n, 0.0) + gain
            began[k] = y
            epoch = data.local_batches(round, BATCH)  # shuffled anew whenever it is iterated over
            for batch in [batch for _ in range(EPOCHS) for batch in epoch]:
                y = {n: y[n] - LR * g for n, g in loop.gradient(y, batch).items()}
            trained[k] = y
        own, sent = own | trained, trained
        federation.run_round(round)
    for k in federation.store.clients_with_state:
        assert_same(copy(federation.store.model(k)), own[k])
    server = federation.server.parts["personalization"].server_state()
    assert server["affinity"].keys() == sums.keys()
    for k, row in sums.items():
        assert server["affinity"][k] == pytest.approx(row, rel=1e-3, abs=1e-5)
        message = federation.server.broadcast(4).to_client(k).extras["personalization"]
        best = sorted(sent.keys() - {k}, key=lambda n, row=row: -row.get(n, 0.0))
        assert message["clients"].tolist() == best


def test_without_received_models_a_client_starts_from_its_own() -> None:
    federation = personalized("fedfomo")
    train(federation, 1, (0,))
    own = copy(federation.store.model(0))
    module = begin_client(federation.engine, 0, federation.server.broadcast(2).to_client(0))
    for name, value in own.items():
        torch.testing.assert_close(module.weights[name], value)


def test_validation_samples_are_the_same_in_all_rounds(three: Federation) -> None:
    found = []
    for round in (2, 3):
        message = three.server.broadcast(round).to_client(1)
        data = cast(Any, begin_client(three.engine, 1, message).data)
        found.append(data.train_index.tolist())
        assert data.class_counts.tolist() == data.labels.bincount(minlength=10).tolist()
    assert found[0] == found[1]


def test_a_client_with_one_sample_trains_on_it() -> None:
    federation = personalized("fedfomo")
    train(federation, 1, (0, 1))
    client = federation.data.clients[2]
    federation.data.clients[2] = client.subset(torch.tensor([0]))
    train(federation, 2, (2,))
    assert federation.server.parts["personalization"].server_state()["models"].keys() == {2}


def test_a_client_weighs_as_much_as_with_all_its_samples(three: Federation) -> None:
    (update,) = three.engine.train([1], three.server.broadcast(2))
    assert (update.num_samples, update.samples) == (50, 38)


def test_what_is_sent() -> None:
    federation = federate(
        *("clients.count=4", "clients.per_round=4", "algorithm=fedfomo", "rounds=2"),
        "personalization.models=2",
    )
    size = 4 * (64 * 128 + 128 + 128 * 64 + 64 + 64 * 10 + 10)
    first, second = (federation.run_round(round).metrics for round in (1, 2))
    assert (first["cost/download_bytes"], first["cost/upload_bytes"]) == (0, 4 * size)
    assert second["cost/download_bytes"] == 4 * (2 * size + 2 * 8)
    assert second["cost/upload_bytes"] == 4 * (size + 2 * 8 + 2 * 4)
    assert "global/accuracy" not in second


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["vectorized", "trainer"])
def test_every_engine_gives_the_same_models(engine: str) -> None:
    words, cohorts = ["personalization=fedfomo"], ((0, 1, 2, 3), (1, 2), (0, 2))
    assert_models_agree(engine, words, cohorts)


@pytest.mark.slow
def test_the_contract() -> None:
    check_part("personalization=fedfomo", "head=prototype", "local.grad_clip=10")
