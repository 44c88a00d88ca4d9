"""FedAP against hand values, against plain PyTorch, and in federations."""

import pytest
import torch
import torch.nn.functional as F
from support.federations import assert_engine_agrees, equal, federate
from support.small_federations import BATCHNORM, SMALL, copy, personalized, train
from torch import Tensor, nn

from fedexp.core.messages import PartMessage, PartUpdate, Tensors
from fedexp.core.part import Clients, Model, Setting
from fedexp.core.sockets import Network
from fedexp.errors import InputError
from fedexp.heads.linear import Linear
from fedexp.losses.cross_entropy import CrossEntropy
from fedexp.personalization.fedap import FedAP, distance
from fedexp.testing import check_part

NO_WARMUP = "personalization.warmup=0"


def statistics(mean: float, deviation: float) -> Tensors:
    """The running statistics of a BatchNorm layer with two equal features."""
    return {
        "backbone.0.running_mean": torch.full((2,), mean),
        "backbone.0.running_var": torch.full((2,), deviation**2),
    }


def test_a_distance_by_hand() -> None:
    """The layers' squared distances are 3^2 + 4^2 and 2 (1^2 + 2^2)."""
    one = {
        "a.running_mean": torch.tensor([1.0, 5.0]),
        "a.running_var": torch.tensor([1.0, 25.0]),
        "b.running_mean": torch.zeros(2),
        "b.running_var": torch.ones(2),
    }
    other = {
        "a.running_mean": torch.tensor([4.0, 5.0]),
        "a.running_var": torch.tensor([1.0, 1.0]),
        "b.running_mean": torch.ones(2),
        "b.running_var": torch.full((2,), 9.0),
    }
    assert distance(one, other) == pytest.approx(5 + 10**0.5)
    assert distance(one, one) == 0


def part(warmup: float = 0.0, own: float = 0.6) -> FedAP:
    """The part of a run of four rounds, for a model with one BatchNorm layer."""
    made = FedAP(warmup, own)
    network = Network(nn.Sequential(nn.BatchNorm1d(2)), Linear(2, 2, bias=True), 2, 2)
    made.create(network, CrossEntropy())
    counts = torch.ones(4, 2, dtype=torch.int64)
    sent = frozenset(["head.w", "head.steps"])
    made.setup(Setting(0, 4, 2, 2, 4, 4, Clients.of(counts), Model({}, sent)))
    return made


def update(client: int, value: float, found: Tensors) -> PartUpdate:
    model = {"head.w": torch.tensor([float(value)]), "head.steps": torch.tensor(client)}
    return PartUpdate(client, 1, {}, model | found)


def sent_to(made: FedAP, client: int) -> Tensors:
    message = PartMessage(2, {"head.w": torch.tensor([99.0]), "head.steps": torch.tensor(9)})
    return made.message_to(client, message).weights


def test_a_message_by_hand() -> None:
    """Client 0 has the distances sqrt(2) and 3 sqrt(2): the shares are 0.6, 0.3 and 0.1."""
    made = part()
    made.aggregate(
        [
            update(0, 1, statistics(0, 1)),
            update(1, 2, statistics(1, 1)),
            update(2, 10, statistics(0, 4)),
        ]
    )
    found = sent_to(made, 0)
    assert found["head.w"].tolist() == pytest.approx([0.6 * 1 + 0.3 * 2 + 0.1 * 10])
    assert found["head.steps"] == 0
    assert sent_to(made, 3)["head.w"] == 99


def test_equal_statistics_and_a_client_alone() -> None:
    made = part()
    made.aggregate([update(0, 1, statistics(0, 1))])
    assert sent_to(made, 0)["head.w"].tolist() == pytest.approx([1])
    made.aggregate([update(1, 2, statistics(0, 1)), update(2, 7, statistics(1, 1))])
    assert sent_to(made, 0)["head.w"].tolist() == pytest.approx([0.6 * 1 + 0.4 * 2])


def test_statistics_are_those_at_the_end_of_the_warm_up() -> None:
    made = part(warmup=0.5)
    for mean in (1.0, 2.0, 3.0):
        made.aggregate([update(0, 1, statistics(mean, 1))])
        made.correct({}, {"w": torch.ones(1)}, {}, 1)
    made.aggregate([update(1, 1, statistics(4, 1))])
    made.aggregate([update(1, 1, statistics(5, 1))])
    found = made.server_state()["statistics"]
    assert {c: s["backbone.0.running_mean"][0].item() for c, s in found.items()} == {0: 2, 1: 4}


def test_the_warm_up_is_fedbn_s_and_then_the_global_model_stays() -> None:
    words = [*SMALL, *BATCHNORM, "rounds=4"]
    one, other = (federate(*words, f"algorithm={name}") for name in ("fedap", "fedbn"))
    for round in range(1, 5):
        one.run_round(round)
        if round <= 2:
            other.run_round(round)
        assert equal(one.server.weights, other.server.weights)


def gap(one: Tensors, other: Tensors) -> Tensor:
    """The distance of two clients with one BatchNorm layer, by plain PyTorch."""
    layer = "backbone.2.running_"
    means = one[f"{layer}mean"] - other[f"{layer}mean"]
    deviations = one[f"{layer}var"].sqrt() - other[f"{layer}var"].sqrt()
    return (means.square().sum() + deviations.square().sum()).sqrt()


def test_a_round_of_own_models_by_plain_pytorch() -> None:
    federation = personalized("fedap", NO_WARMUP, *BATCHNORM)
    initial = copy(federation.server.weights)
    train(federation, 1, (0, 1, 3))
    models = {client: copy(federation.store.model(client)) for client in (0, 1, 3)}
    message = federation.server.broadcast(2)
    assert equal(message.to_client(2).weights, initial)
    near = {other: 1 / gap(models[1], models[other]) for other in (0, 3)}
    for name, value in message.to_client(1).weights.items():
        others = sum(near[n] * models[n][name] for n in near) / sum(near.values())
        torch.testing.assert_close(value, 0.5 * models[1][name] + 0.5 * others)


def test_a_turn_by_plain_pytorch() -> None:
    """A client's steps of SGD from its mean and its own BatchNorm layer, and the next mean.

    The shares stay those of the statistics after the clients' first turns.
    """
    federation = personalized("fedap", NO_WARMUP, "local.epochs=2", *BATCHNORM)
    train(federation, 1, (0, 1, 3))
    models = {client: copy(federation.store.model(client)) for client in (0, 1, 3)}

    def mean(client: int, now: dict[int, Tensors], names: list[str]) -> Tensors:
        """Half the client's own weights; the rest by the distances after the first round."""
        near = {n: 1 / gap(models[client], models[n]) for n in models if n != client}
        total = sum(near.values())
        others = {name: sum(near[n] / total * now[n][name] for n in near) for name in names}
        return {name: 0.5 * now[client][name] + 0.5 * others[name] for name in names}

    shared = ["backbone.1.weight", "backbone.1.bias", "head.linear.weight", "head.linear.bias"]
    scale, shift, average, variance = (
        f"backbone.2.{name}" for name in ("weight", "bias", "running_mean", "running_var")
    )
    running = {name: models[1][name].clone() for name in (average, variance)}
    start = mean(1, models, shared) | {name: models[1][name] for name in (scale, shift)}
    w = {name: value.clone().requires_grad_() for name, value in start.items()}
    optimizer = torch.optim.SGD(w.values(), lr=0.02, momentum=0.9, weight_decay=1e-5)
    batches = federation.data.clients[1].local_batches(2, 16)
    for inputs, targets in (batch for _ in range(2) for batch in batches):
        a = F.linear(inputs.flatten(1), w["backbone.1.weight"], w["backbone.1.bias"])
        middle, spread = a.mean(dim=0), a.var(dim=0, unbiased=False)
        for name, value in ((average, middle), (variance, a.var(dim=0, unbiased=True))):
            running[name] = 0.9 * running[name] + 0.1 * value.detach()
        z = ((a - middle) / (spread + 1e-5).sqrt() * w[scale] + w[shift]).relu()
        loss = F.cross_entropy(F.linear(z, w[shared[2]], w[shared[3]]), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    expected = {name: value.detach() for name, value in w.items()} | running
    train(federation, 2, (1,))
    trained = federation.store.model(1)
    for name, value in expected.items():
        torch.testing.assert_close(trained[name], value, atol=1e-5, rtol=1e-4)
    for client in (0, 1):
        following = mean(client, models | {1: expected}, shared)
        sent = federation.server.broadcast(3).to_client(client).weights
        assert sent.keys() == set(shared)
        for name, value in following.items():
            torch.testing.assert_close(sent[name], value, atol=1e-5, rtol=1e-4)


def test_what_is_sent() -> None:
    """BatchNorm layers stay; their running statistics are reported."""
    federation = federate(*SMALL, *BATCHNORM, "algorithm=fedap")
    size = 4 * (64 * 8 + 8 + 8 * 10 + 10)
    metrics = federation.run_round(1).metrics
    assert metrics["cost/download_bytes"] == 2 * size
    assert metrics["cost/upload_bytes"] == 2 * (size + 4 * 2 * 8)
    assert "global/accuracy" not in metrics


def test_the_trainer_gives_the_same_models() -> None:
    """Clients cannot be stacked, because of BatchNorm."""
    assert_engine_agrees("trainer", [*SMALL, *BATCHNORM, "algorithm=fedap", "rounds=6"], 3)


def test_a_model_without_running_statistics_is_refused() -> None:
    with pytest.raises(InputError, match=r"personalization=fedap: compares running statistics .*"):
        personalized("fedap")


@pytest.mark.slow
def test_the_contract() -> None:
    check_part("personalization=fedap", NO_WARMUP, "head=prototype", "model.batch_norm=true")
