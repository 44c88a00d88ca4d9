"""IFCA, compared with a plain loop over clients and models."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from support.federations import equal, federate
from support.small_federations import (
    BATCHNORM,
    ONE_STEP,
    RATE,
    SMALL,
    copy,
    gradient,
    personal,
    train,
)

from fedexp.core.messages import Message, Tensors
from fedexp.errors import InputError
from fedexp.measures.scoring.scoring import Scoring
from fedexp.runtime.federation import Federation
from fedexp.testing import check_part

IFCA = [*SMALL, "algorithm=ifca", "personalization.clusters=3", "partition.beta=0.1"]
MODEL = 4 * (64 * 128 + 128 + 128 * 64 + 64 + 64 * 10 + 10)  # bytes in float32
CLIENTS = (0, 1, 2, 3)


def models(federation: Federation) -> list[Tensors]:
    part: Any = federation.engine.resources.personalization
    return [copy(federation.server.weights), *map(copy, part.server_state()["models"])]


def plain_loss(federation: Federation, client: int, weights: Tensors) -> float:
    """Mean cross-entropy by hand; the model is an MLP of three linear layers."""
    (batch,) = federation.data.clients[client].batches(1000)
    z, targets = batch[0].flatten(1), batch[1]
    names = ("backbone.1.0", "backbone.1.2", "head.linear")
    for name in names:
        z = F.linear(z, weights[f"{name}.weight"], weights[f"{name}.bias"])
        z = z if name == "head.linear" else z.relu()
    return F.cross_entropy(z, targets).item()


@pytest.mark.parametrize("engine", ["serial", "vectorized", "trainer"])
@pytest.mark.parametrize("weighting", ["uniform", "samples"])
def test_two_rounds_by_a_plain_loop(engine: str, weighting: str) -> None:
    options = [f"engine={engine}", f"personalization.weighting={weighting}"]
    federation = federate(*IFCA, *ONE_STEP, *options)
    expected = models(federation)
    sizes = federation.data.sizes
    used = []
    for round in (1, 2):
        choices, trained = [], []
        for client in CLIENTS:
            losses = [plain_loss(federation, client, model) for model in expected]
            choices.append(losses.index(min(losses)))
            start = expected[choices[-1]]
            g = gradient(federation, client, Message(round, start), start)
            trained.append({name: start[name] - RATE * g[name] for name in g})
        for number in set(choices):
            own = [client for client in CLIENTS if choices[client] == number]
            a = [sizes[c].item() if weighting == "samples" else 1 for c in own]
            expected[number] = {
                name: sum(w * trained[c][name] for w, c in zip(a, own, strict=True)) / sum(a)
                for name in expected[number]
            }
        train(federation, round, CLIENTS)
        for found, wanted in zip(models(federation), expected, strict=True):
            for name, value in wanted.items():
                torch.testing.assert_close(found[name], value, rtol=0, atol=1e-6)
        used.append(len(set(choices)))
        assert federation.server.metrics()["personalization/clusters"] == used[-1]
    assert max(used) > 1  # clients differ in their choice


def test_the_first_model_starts_as_fedavg_does_and_the_others_elsewhere() -> None:
    first, *others = models(federate(*IFCA))
    assert equal(first, federate(*SMALL).server.weights)
    assert not equal(others[0], others[1])
    assert not equal(others[0], first)


def test_one_cluster_is_fedavg_to_the_bit() -> None:
    one = federate(*IFCA, "personalization.clusters=1", "personalization.weighting=samples")
    plain = federate(*SMALL, "partition.beta=0.1")
    for round in (1, 2):
        for federation in (one, plain):
            federation.run_round(round)
    assert equal(one.server.weights, plain.server.weights)


def test_k_models_are_sent_and_one_returns() -> None:
    federation = federate(*IFCA)
    metrics = federation.run_round(1).metrics
    assert metrics["cost/download_bytes"] == 2 * 3 * MODEL
    assert metrics["cost/upload_bytes"] == 2 * (MODEL + 8)  # and the number of the model
    assert metrics["cost/client_memory_bytes"] == 0


@pytest.mark.parametrize("engine", ["serial", "vectorized"])
def test_a_personal_model_is_the_present_model_with_the_smallest_loss(engine: str) -> None:
    federation = federate(*IFCA, f"engine={engine}")
    train(federation, 1, CLIENTS)
    present = models(federation)
    chosen = set()
    for client, found in Scoring(federation.engine).score_personal(federation.server.broadcast(1)):
        losses = [plain_loss(federation, client, model) for model in present]
        best = present[losses.index(min(losses))]
        chosen.add(losses.index(min(losses)))
        federation.module.load(best)
        with torch.no_grad():
            inputs = torch.cat([x for x, _ in federation.data.test.batches(1000)])
            right = federation.module(inputs).argmax(dim=1) == federation.data.test.labels
        assert torch.equal(found.correct, right)
    assert len(chosen) > 1
    assert set(personal(federation, 1)) == set(CLIENTS)


def test_common_weights_are_averaged_over_all_clients_and_sent_once() -> None:
    federation = federate(*IFCA, "personalization.common=[backbone.]", "aggregator=uniform")
    message = federation.server.broadcast(1)
    updates = list(federation.engine.train(CLIENTS, message))
    assert len({int(update.extras["personalization"]["chosen"]) for update in updates}) > 1
    name, head = "backbone.1.0.weight", 4 * (64 * 10 + 10)
    assert message.nbytes == MODEL + 2 * head
    for update in updates:
        federation.server.add(update)
    federation.server.step()
    mean = torch.stack([update.weights[name] for update in updates]).double().mean(dim=0)
    torch.testing.assert_close(federation.server.weights[name], mean.float(), rtol=0, atol=1e-7)
    of_first = [u for u in updates if not u.extras["personalization"]["chosen"]]
    mean = torch.stack([u.weights["head.linear.weight"] for u in of_first or updates]).mean(dim=0)
    found = federation.server.weights["head.linear.weight"]
    wanted = mean if of_first else message.weights["head.linear.weight"]
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-7)


@pytest.mark.slow
@pytest.mark.parametrize(
    "method",
    [
        ["regularizer=proximal", "loss=ntd"],
        ["gradient=sam", "sampler=power_of_choice"],
        ["head=cosine", "loss=focal"],
        [*BATCHNORM, "local.batch_size=13"],
    ],
)
def test_it_runs_with_other_sockets(method: list[str]) -> None:
    federation = federate(*IFCA, *method)
    for round in (1, 2):
        metrics = federation.run_round(round).metrics
        assert 0 < metrics["train/loss"] < 100
    assert "global/accuracy" not in metrics


@pytest.mark.parametrize("aggregator", ["median", "momentum", "norm_clipped"])
def test_aggregators_that_are_no_mean_are_refused(aggregator: str) -> None:
    with pytest.raises(InputError, match=r"^aggregator: would not act on the clusters' models"):
        federate(*IFCA, f"aggregator={aggregator}")


@pytest.mark.slow
@pytest.mark.parametrize("common", ["[]", "[backbone.]"])
def test_the_contract(common: str) -> None:
    check_part(
        "algorithm=ifca", "partition.beta=0.1", f"personalization.common={common}", tolerance=1e-5
    )
