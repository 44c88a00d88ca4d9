"""GPFL: its valve, losses and conditions by hand, one step by a plain loop, and what is sent."""

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from support.federations import begin_client, federate
from support.plain_loop import LR, SETTING, PlainLoop, assert_same
from support.plain_mlp import features
from support.small_federations import ONE_STEP, copy, personal, personalized, train

from fedexp.core.messages import Tensors
from fedexp.personalization.gpfl import ConditionalValve, guidance

ETA = 0.1
STEP = [*ONE_STEP, f"optimizer.lr={ETA}", "personalization.lam=0.2", "personalization.mu=0.3"]
WEIGHT = "personalization."


def test_the_valve_by_hand() -> None:
    valve = ConditionalValve(2)
    with torch.no_grad():
        for name, layers in (("gamma", valve.gamma), ("beta", valve.beta)):
            layers[0].weight.copy_(torch.eye(2))
            layers[0].bias.zero_()
            layers[2].weight.fill_(2.0 if name == "gamma" else 1.0)
    # The condition (3, -1) is rectified to (3, 0), and normalised to (1, -1).
    # So the scale is (2, -2) + 1 and the shift (1, -1): 3 * 2 + 1 = 7; -1 * 2 - 1 < 0.
    found = valve(torch.tensor([[2.0, 2.0], [-1.0, -3.0]]), torch.tensor([3.0, -1.0]))
    expected = torch.tensor([[7.0, 0.0], [0.0, 2.0]])
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-4)


def test_the_guidance_by_hand() -> None:
    # (3, 4) has the cosines 0.6 and 0.8 with the axes; its distance from (0, 0) is 5.
    embeddings, received = torch.tensor([[2.0, 0.0], [0.0, 7.0]]), torch.zeros(2, 2)
    found = guidance(torch.tensor([[3.0, 4.0]]), torch.tensor([1]), embeddings, received, 0.1)
    expected = math.log(math.exp(0.6) + math.exp(0.8)) - 0.8 + 0.5
    assert found.tolist() == pytest.approx([expected])


def test_the_guidance_of_features_at_their_embedding_is_finite() -> None:
    features = torch.zeros(1, 2, requires_grad=True)
    value = guidance(features, torch.tensor([0]), torch.eye(2), torch.zeros(2, 2), 1.0).sum()
    (slopes,) = torch.autograd.grad(value, features)
    assert value.isfinite()
    assert slopes.isfinite().all()


def test_the_conditions_are_means_of_the_received_embeddings() -> None:
    federation = personalized("gpfl")
    train(federation, 1)
    message = federation.server.broadcast(2)
    module = begin_client(federation.engine, 1, message)
    embeddings = message.weights["personalization.embeddings"]
    labels = federation.data.clients[1].labels
    own: Any = module.personalization
    torch.testing.assert_close(own.condition, embeddings[labels].mean(dim=0))
    torch.testing.assert_close(own.common, embeddings.mean(dim=0))


@pytest.mark.parametrize("engine", ["serial", "vectorized", "trainer"])
def test_a_step_by_a_plain_loop(engine: str) -> None:
    federation = personalized("gpfl", *STEP, f"engine={engine}")
    message = federation.server.broadcast(1)
    module = federation.engine.resources.load_global(message)
    w = {n: p.detach().clone().requires_grad_() for n, p in module.named_parameters()}
    ((inputs, y),) = federation.data.clients[0].batches(1000)

    def valve(z: torch.Tensor, u: torch.Tensor) -> torch.Tensor:
        scale, shift = (
            F.layer_norm(
                F.linear(
                    u, w[f"{WEIGHT}valve.{n}.0.weight"], w[f"{WEIGHT}valve.{n}.0.bias"]
                ).relu(),
                (64,),
                w[f"{WEIGHT}valve.{n}.2.weight"],
                w[f"{WEIGHT}valve.{n}.2.bias"],
            )
            for n in ("gamma", "beta")
        )
        return ((scale + 1) * z + shift).relu()

    start = w[f"{WEIGHT}embeddings"].detach().clone()
    z = features(w, inputs)
    logits = F.linear(
        valve(z, start[y].mean(dim=0)), w["head.linear.weight"], w["head.linear.bias"]
    )
    common = valve(z, start.mean(dim=0))
    cosines = F.cosine_similarity(common.unsqueeze(1), w[f"{WEIGHT}embeddings"], dim=2)
    distance = ((common - start[y]) ** 2).sum(dim=1).sqrt().mean()
    own = [value for name, value in w.items() if name.startswith(WEIGHT)]
    penalty = sum((each**2).sum() for each in own)
    loss = F.cross_entropy(logits, y) + F.cross_entropy(cosines, y) + 0.2 * distance
    found = torch.autograd.grad(loss + 0.15 * penalty, list(w.values()))
    train(federation, 1)
    trained = federation.store.model(0)
    for (name, value), slope in zip(w.items(), found, strict=True):
        expected = (value - ETA * slope).detach()
        torch.testing.assert_close(trained[name], expected, rtol=1e-3, atol=1e-5)


def test_two_rounds_by_plain_pytorch() -> None:
    """All shared weights are averaged; a client keeps its head, and the condition of its turn."""
    words = ["algorithm=gpfl", "personalization.lam=0.2", "personalization.mu=0.3"]
    federation, loop = federate(*SETTING, *words), PlainLoop(*words)
    module: Any = loop.federation.engine.resources.load_global(loop.federation.server.broadcast(1))
    start = copy(dict(module.named_parameters()))
    x, models = {n: w for n, w in start.items() if not n.startswith("head.")}, {}

    def valve(w: Tensors, z: torch.Tensor, u: torch.Tensor) -> torch.Tensor:
        both = []
        for name in ("gamma", "beta"):
            one, two = (f"{WEIGHT}valve.{name}.{layer}" for layer in (0, 2))
            v = F.linear(u, w[f"{one}.weight"], w[f"{one}.bias"]).relu()
            both.append(F.layer_norm(v, (8,), w[f"{two}.weight"], w[f"{two}.bias"]))
        return ((both[0] + 1) * z + both[1]).relu()

    for round, cohort in loop.cohorts(2):
        total, trained = sum(loop.samples[k] for k in cohort), {}
        embeddings = x[f"{WEIGHT}embeddings"]
        for k in cohort:
            p = embeddings[loop.federation.data.clients[k].labels].mean(dim=0)
            w = start | {n: v for n, v in models.get(k, {}).items() if "head" in n} | x
            for inputs, y in loop.batches(round, k):
                w = {n: v.detach().requires_grad_() for n, v in w.items()}
                z = features(w, inputs)
                logits = F.linear(valve(w, z, p), w["head.linear.weight"], w["head.linear.bias"])
                common = valve(w, z, embeddings.mean(dim=0))
                cosines = F.cosine_similarity(common[:, None], w[f"{WEIGHT}embeddings"], dim=2)
                loss = F.cross_entropy(logits, y) + F.cross_entropy(cosines, y)
                loss = loss + 0.2 * ((common - embeddings[y]) ** 2).sum(dim=1).sqrt().mean()
                slopes = dict(zip(w, torch.autograd.grad(loss, list(w.values())), strict=True))
                decay = {n: 0.3 if n.startswith(WEIGHT) else 0.0 for n in w}
                w = {n: (v - LR * (slopes[n] + decay[n] * v)).detach() for n, v in w.items()}
            trained[k] = w | {f"{WEIGHT}condition": p}
        x = {n: sum(loop.samples[k] / total * w[n] for k, w in trained.items()) for n in x}
        models |= trained
        federation.run_round(round)
    assert_same(federation.server.weights, x)
    for k, w in models.items():
        assert_same(copy(federation.store.model(k)), w)


def test_the_head_and_the_condition_stay_at_the_client() -> None:
    federation = personalized("gpfl")
    train(federation, 1)
    names = set(federation.server.weights)
    assert "personalization.embeddings" in names
    assert not {n for n in names if n.startswith("head.") or n.endswith("condition")}
    models = [copy(federation.store.model(client)) for client in (0, 1)]
    first, second = (each["personalization.condition"] for each in models)
    assert not torch.equal(first, second)
    before = personal(federation, 1)
    assert before[0].correct.float().mean() > 0
