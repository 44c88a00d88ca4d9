"""Elastic aggregation against hand values, against plain PyTorch, and in federations."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from support.federations import begin_client, federate
from support.plain_loop import SETTING, PlainLoop, assert_same
from support.plain_mlp import descend, features, logits
from support.small_federations import BATCHNORM

from fedexp.aggregators.elastic import Elastic, coefficients
from fedexp.core.messages import Tensors, Update
from fedexp.core.part import Clients, Model, Setting
from fedexp.core.randomness import torch_generator
from fedexp.testing import check_part

SMALL = ["clients.count=4", "clients.per_round=3", "local.epochs=1", "data.subset=200"]


def part(largest: Any = "tensor", weighting: Any = "samples") -> Elastic:
    made = Elastic(0.5, 0.95, largest, 8, weighting)
    shapes = {"v": torch.Size([2]), "w": torch.Size([2])}
    model = Model(shapes, frozenset(["v", "w", "mean"]))
    made.setup(Setting(0, 2, 2, 2, 3, 3, Clients.of(torch.ones(3, 2)), model))
    return made


def update(client: int, value: float, omega: list[float], samples: int = 1) -> Update:
    weights = {name: torch.full((2,), value) for name in ("v", "w")} | {"mean": torch.tensor(value)}
    sent = {"v": torch.tensor(omega[:2]).float(), "w": torch.tensor(omega[2:]).float()}
    return Update(client, samples, weights, {"aggregator": sent})


def start() -> Tensors:
    return {"v": torch.zeros(2), "w": torch.ones(2), "mean": torch.zeros(())}


def merged(made: Elastic, *updates: Update) -> Tensors:
    for each in updates:
        made.add(each, start())
    return made.merge(start())


def test_coefficients_by_hand() -> None:
    omega = {"v": torch.tensor([0.0, 1.0, 2.0]), "w": torch.tensor([4.0]), "u": torch.zeros(2)}
    found = coefficients(omega, 0.5, "tensor")
    assert {n: z.tolist() for n, z in found.items()} == {
        "v": [1.5, 1.0, 0.5],
        "w": [0.5],
        "u": [1.5, 1.5],
    }
    found = coefficients(omega, 0.25, "model")
    assert {n: z.tolist() for n, z in found.items()} == {
        "v": [1.25, 1.0, 0.75],
        "w": [0.25],
        "u": [1.25, 1.25],
    }


def test_a_step_by_hand() -> None:
    """The average is 4 and the average Omega is [1, 2, 0, 3]; v starts at 0 and w at 1."""
    made = part()
    updates = update(0, 1.0, [1, 5, 0, 0], samples=1), update(1, 5.0, [1, 1, 0, 4], samples=3)
    found = merged(made, *updates)
    assert found["v"].tolist() == [(1.5 - 0.5) * 4, (1.5 - 1) * 4]
    assert found["w"].tolist() == [1 + 1.5 * 3, 1 + 0.5 * 3]
    assert found["mean"].item() == 4
    assert made.metrics() == {
        "aggregator/mean_coefficient": pytest.approx((1 + 0.5 + 1.5 + 0.5) / 4)
    }
    of_model = merged(part("model"), *updates)
    assert of_model["v"].tolist() == pytest.approx([(1.5 - 1 / 3) * 4, (1.5 - 2 / 3) * 4])
    assert of_model["w"].tolist() == [1 + 1.5 * 3, 1 + 0.5 * 3]
    uniform = merged(part(weighting="uniform"), *updates)
    assert uniform["mean"].item() == 3
    assert uniform["v"].tolist() == pytest.approx([(1.5 - 1 / 3) * 3, 0.5 * 3])


def test_without_updates_nothing_changes() -> None:
    current = start()
    assert part().merge(current) is current


def test_sensitivities_by_plain_pytorch() -> None:
    """With mu = 0 only the last batch counts; with one batch it holds all samples."""
    words = [*SMALL, "algorithm=elastic", "aggregator.mu=0", "aggregator.batch_size=1000"]
    federation = federate(*words)
    message = federation.server.broadcast(1)
    module = begin_client(federation.engine, 1, message)
    (batch,) = federation.data.clients[1].batches(1000)
    parameters = dict(module.backbone.named_parameters(prefix="backbone"))
    parameters |= dict(module.head.named_parameters(prefix="head"))
    square = module.eval()(batch[0]).square().sum() / len(batch[0])
    expected = torch.autograd.grad(square, list(parameters.values()))
    found = federation.store.memory(1, "aggregator")
    for name, value in zip(parameters, expected, strict=True):
        torch.testing.assert_close(found[name], value.abs(), rtol=1e-4, atol=1e-6)


def test_the_moving_average_by_plain_pytorch() -> None:
    """After n equal batches Omega is 1 - mu^n times |g|: the samples are all the same."""

    def same(data: Any) -> None:
        data.train.inputs[:] = data.train.inputs[0].clone()

    words = [*SMALL, "algorithm=elastic", "aggregator.batch_size=1", "aggregator.mu=0.9"]
    one = federate(*words, change=same)
    whole = federate(*words, "aggregator.mu=0", change=same)
    message = one.server.broadcast(1)
    n = one.data.clients[1].num_samples
    begin_client(one.engine, 1, message)
    begin_client(whole.engine, 1, message)
    expected = whole.store.memory(1, "aggregator")
    for name, value in one.store.memory(1, "aggregator").items():
        torch.testing.assert_close(value, (1 - 0.9**n) * expected[name], rtol=1e-4, atol=1e-6)


def test_two_rounds_by_plain_pytorch() -> None:
    """All batches' sensitivities at the received weights, plain local steps, the scaled step."""
    words = ["algorithm=elastic", "aggregator.tau=0.3", "aggregator.mu=0.6"]
    loop, federation = PlainLoop(*words), federate(*SETTING, *words)
    weights = loop.start
    for round, cohort in loop.cohorts(2):
        federation.run_round(round)
        models, omegas = {}, {}
        for client in cohort:
            ((inputs, y),) = loop.federation.data.clients[client].batches(1000)
            draws = torch_generator(0, "sensitivity", round, client)
            omega = {name: torch.zeros_like(value) for name, value in weights.items()}
            for chosen in torch.split(torch.randperm(len(y), generator=draws), 16):
                w = {name: value.clone().requires_grad_() for name, value in weights.items()}
                square = logits(w, features(w, inputs[chosen])).square().sum(dim=1).mean()
                slopes = torch.autograd.grad(square, list(w.values()))
                for name, slope in zip(w, slopes, strict=True):
                    omega[name] = 0.6 * omega[name] + 0.4 * slope.abs()
            omegas[client] = omega
            models[client] = descend(
                weights,
                loop.batches(round, client),
                lambda w, batch, _: F.cross_entropy(logits(w, features(w, batch[0])), batch[1]),
            )
        mean, omega = (loop.mean(each, cohort, weights) for each in (models, omegas))
        zeta = {name: 1.3 - value / value.max() for name, value in omega.items()}
        weights = {n: w + zeta[n] * (mean[n] - w) for n, w in weights.items()}
        assert_same(federation.server.weights, weights)


def test_labels_are_not_used() -> None:
    def relabelled(data: Any) -> None:
        data.train.labels[:] = data.train.labels.roll(7)

    words = [*SMALL, "algorithm=elastic"]
    one, other = federate(*words), federate(*words, change=relabelled)
    message = one.server.broadcast(1)
    for federation in (one, other):
        begin_client(federation.engine, 1, message)
    found = other.store.memory(1, "aggregator")
    assert found
    for name, value in one.store.memory(1, "aggregator").items():
        assert torch.equal(found[name], value)


def test_the_upload_is_twice_the_model() -> None:
    size = 4 * (64 * 128 + 128 + 128 * 64 + 64 + 64 * 10 + 10)
    metrics = federate(*SMALL, "algorithm=elastic").run_round(1).metrics
    assert metrics["cost/upload_bytes"] == 2 * metrics["cost/download_bytes"] == 3 * 2 * size
    assert 0.5 < metrics["aggregator/mean_coefficient"] < 1.5


@pytest.mark.slow
@pytest.mark.parametrize(
    "others",
    [["head=prototype", "local.grad_clip=10"], ["personalization=fedper"], BATCHNORM],
    ids=lambda others: others[0],
)
def test_it_combines_with_other_parts(others: list[str]) -> None:
    federation = federate(*SMALL, "aggregator=elastic", *others)
    for round in (1, 2):
        metrics = federation.run_round(round).metrics
    assert 0 < metrics["train/loss"] < 100


@pytest.mark.slow
def test_the_contract() -> None:
    check_part(
        "aggregator=elastic", "aggregator.largest=model", "head=prototype", "local.grad_clip=10"
    )
