"""CCVR's head: its statistics, virtual features and training by hand, and in short runs."""

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from support.draws import draw
from support.federations import compose, equal, federate
from torch import nn

from fedexp.core.randomness import torch_generator
from fedexp.errors import InputError
from fedexp.heads.calibrated import gaussian_features, mean_and_covariance, moments
from fedexp.runtime.plan import plan
from fedexp.testing import check_part

SMALL = ["clients.count=5", "clients.per_round=5", "local.epochs=1", "data.subset=300", "rounds=2"]
CCVR = ["algorithm=ccvr", *SMALL, "head.features=30", "head.epochs=2"]


# The formulas.


def test_the_clients_moments_give_the_papers_mean_and_covariance() -> None:
    clients = [draw(count, 3, seed=count).double() + count for count in (1, 4, 7)]
    total = sum(len(z) for z in clients)
    # Equations 3 and 4, from the clients' means and covariances
    means = [z.mean(dim=0) for z in clients]
    covariances = [torch.zeros(3, 3) if len(z) == 1 else torch.cov(z.T) for z in clients]
    mean = sum(len(z) / total * m for z, m in zip(clients, means, strict=True))
    covariance = -total / (total - 1) * torch.outer(mean, mean)  # type: ignore[arg-type]
    for z, m, c in zip(clients, means, covariances, strict=True):
        covariance += (len(z) - 1) / (total - 1) * c + len(z) / (total - 1) * torch.outer(m, m)
    sums = sum(moments(z.float()).double() for z in clients)
    found = mean_and_covariance(sums, total)  # type: ignore[arg-type]
    torch.testing.assert_close(found[0], mean, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(found[1], covariance, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(found[1], torch.cov(torch.cat(clients).T), atol=1e-4, rtol=1e-4)


def test_one_feature_has_no_spread() -> None:
    mean, covariance = mean_and_covariance(moments(torch.tensor([[1.0, 2.0]])).double(), 1)
    assert mean.tolist() == [1, 2]
    assert covariance.abs().max() == 0


def test_virtual_features_have_the_mean_and_the_covariance_even_if_it_is_singular() -> None:
    mean = torch.tensor([1.0, -2.0, 3.0], dtype=torch.float64)
    factor = torch.tensor([[1.0, 0.0], [2.0, 0.5], [0.0, 0.0]], dtype=torch.float64)
    covariance = factor @ factor.T  # of rank 2: the third feature is always 3
    found = gaussian_features(mean, covariance, 20_000, torch_generator(0, "test"))
    torch.testing.assert_close(found.mean(dim=0), mean, atol=0.05, rtol=0)
    torch.testing.assert_close(torch.cov(found.T), covariance, atol=0.1, rtol=0)
    assert (found[:, 2] - 3).abs().max() < 1e-6


# In a federation.


def test_before_the_last_round_it_is_fedavg_to_the_bit() -> None:
    fedavg, ccvr = federate(*SMALL), federate(*CCVR)
    one, other = fedavg.run_round(1).metrics, ccvr.run_round(1).metrics
    assert equal(fedavg.server.weights, ccvr.server.weights)
    for name in one:
        if not name.startswith(("time/", "cost/stored", "cost/server")):
            assert one[name] == other[name], name


def test_the_last_round_calibrates_the_classifier_by_loops() -> None:
    federation = federate(*CCVR)
    federation.run_round(1)
    before = dict(federation.server.weights)
    body = federation.global_model(1).backbone
    found = [batch for c in federation.data.clients for batch in c.batches(1000)]
    with torch.no_grad():
        z, y = body(torch.cat([x for x, _ in found])), torch.cat([y for _, y in found])
    metrics = federation.run_round(2).metrics
    assert equal(before, federation.server.weights)

    generator = torch_generator(0, "calibrated_head", 1)
    virtual = []
    for label in range(10):
        own = z[y == label].double().numpy()
        values, vectors = np.linalg.eigh(np.cov(own.T))
        root = vectors @ np.diag(np.sqrt(values.clip(min=0))) @ vectors.T
        noise = torch.randn(30, 64, generator=generator, dtype=torch.float64).numpy()
        virtual.append(torch.from_numpy(own.mean(axis=0) + noise @ root).float())
    inputs, labels = torch.cat(virtual), torch.arange(10).repeat_interleave(30)
    layer = nn.Linear(64, 10)
    layer.load_state_dict({n: before[f"head.linear.{n}"] for n in ("weight", "bias")})
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.01)
    for _ in range(2):
        for batch in torch.randperm(300, generator=generator).split(64):
            optimizer.zero_grad()
            F.cross_entropy(layer(inputs[batch]), labels[batch]).backward()
            optimizer.step()
    sent = federation.server.broadcast(2).extras["head"]["retrained"]
    torch.testing.assert_close(sent[:, :-1], layer.weight.detach(), atol=1e-4, rtol=1e-3)
    torch.testing.assert_close(sent[:, -1], layer.bias.detach(), atol=1e-4, rtol=1e-3)
    assert (sent[:, :-1] - before["head.linear.weight"]).abs().max() > 1e-3

    ((x, targets),) = federation.data.test.batches(1000)
    with torch.no_grad():
        logits = body(x) @ sent[:, :-1].T + sent[:, -1]
    assert metrics["global/loss"] == pytest.approx(F.cross_entropy(logits, targets).item())


def test_not_every_round_can_be_a_calibration_round() -> None:
    with pytest.raises(InputError, match=r"^head\.every=1: should be greater than or equal to 2"):
        plan(compose(*CCVR, "head.every=1"))


def test_with_every_training_goes_on_from_the_averaged_classifier() -> None:
    fedavg, ccvr = federate(*SMALL), federate(*CCVR, "rounds=9", "head.every=2")
    for federation in (fedavg, ccvr):
        federation.run_round(1)
    start = dict(ccvr.server.weights)
    ccvr.run_round(2)
    assert equal(start, ccvr.server.weights)
    calibrated = ccvr.server.broadcast(3)
    assert "head" in calibrated.extras
    (one,) = fedavg.engine.train([3], fedavg.server.broadcast(3))
    (other,) = ccvr.engine.train([3], calibrated)
    assert equal(one.weights, other.weights)
    ccvr.run_round(3)
    assert "head" not in ccvr.server.broadcast(3).extras


def test_a_class_that_nobody_holds_and_a_head_without_bias() -> None:
    options = ["partition=shards", "partition.classes_per_client=1", "clients.count=10"]
    options += ["clients.per_round=2"]
    federation = federate(*CCVR, *options, "head.bias=false", "rounds=1")
    metrics = federation.run_round(1).metrics
    assert math.isfinite(metrics["global/loss"])
    sent = federation.server.broadcast(1).extras["head"]["retrained"]
    assert sent.shape == (10, 65)
    assert sent.isfinite().all()


def test_the_bytes_sent_are_counted() -> None:
    plain, ccvr = federate(*SMALL), federate(*CCVR)
    for round in (1, 2):
        one, other = plain.run_round(round).metrics, ccvr.run_round(round).metrics
    held = sum(int((client.class_counts > 0).sum()) for client in ccvr.data.clients)
    expected = held * 65 * 64 * 4 + 5 * 10 * 4
    assert other["cost/upload_bytes"] - one["cost/upload_bytes"] == expected
    assert other["cost/download_bytes"] == one["cost/download_bytes"]


def test_all_samples_count_even_if_a_client_trains_on_fewer() -> None:
    federation = federate(*CCVR, "loss=cyclic_distillation")
    for update in federation.engine.train([0, 1], federation.server.broadcast(2)):
        assert update.extras["head"]["counts"].sum() == update.num_samples > update.samples


@pytest.mark.slow
@pytest.mark.parametrize(
    "overrides",
    [["regularizer=proximal"], ["algorithm=scaffold"], ["aggregator=adam"], ["loss=moon"]],
    ids=str,
)
def test_it_combines_with_other_methods(overrides: list[str]) -> None:
    federation = federate(*SMALL, "head=calibrated", *overrides)
    for round in (1, 2):
        assert math.isfinite(federation.run_round(round).metrics["global/loss"])
    assert "retrained" in federation.server.broadcast(2).extras["head"]


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("personalization=fedbn", r"^head: .* the global model, which this method lacks"),
        ("personalization=fedbabu", r"^head=calibrated: the server has no classifier"),
        ("regularizer=dynamic", r"^head=calibrated: regularizer moves the global model"),
        ("regularizer=accelerated", r"^head=calibrated: with this regularizer clients measure"),
        ("compression@download=topk", r"^head=calibrated: with this download clients measure"),
        ("loss=generative", r"^loss=generative: .* with this head"),
        ("head.features=0", r"^head\.features=0: should be"),
    ],
)
def test_what_has_no_meaning_is_refused_in_one_line(override: str, message: str) -> None:
    with pytest.raises(InputError, match=message) as error:
        federate(*CCVR, override)
    assert "\n" not in str(error.value)


@pytest.mark.slow
def test_the_contract() -> None:
    check_part("algorithm=ccvr", "head.every=2")
