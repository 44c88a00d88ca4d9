"""MetaFed: the adapted weight by hand, three cycles of a ring by plain loops, and what is sent."""

import pytest
import torch
import torch.nn.functional as F
from support.federations import assert_engine_agrees, equal, federate
from support.small_federations import ONE_BY_ONE, ONE_STEP, SMALL, copy, train
from torch import Tensor

from fedexp.core.messages import Tensors
from fedexp.core.randomness import torch_generator
from fedexp.losses.cyclic_distillation import adapted_weight

RATE = 0.4
LAYERS = ("backbone.1.0", "backbone.1.2", "head.linear")


@pytest.mark.parametrize(
    ("own", "teacher", "least", "expected"),
    [
        (0.5, 0.6, 0.9, 10**0.5 / 10),
        (0.5, 0.9, 0.9, 1),  # at most lam
        (0.6, 0.5, 0.5, 10**-0.5 / 10),
        (0.6, 0.5, 0.55, 0),
        (0.6, 0.6, 0.7, 0),
    ],
)
def test_the_adapted_weight_by_hand(
    own: float, teacher: float, least: float, expected: float
) -> None:
    found = adapted_weight(2.0, torch.tensor(own), torch.tensor(teacher), least)
    assert found.item() == pytest.approx(2 * expected, rel=1e-5)


def outputs(weights: Tensors, inputs: Tensor) -> tuple[Tensor, Tensor]:
    z = inputs.flatten(1)
    for layer in LAYERS[:2]:
        z = F.linear(z, weights[f"{layer}.weight"], weights[f"{layer}.bias"]).relu()
    return z, F.linear(z, weights["head.linear.weight"], weights["head.linear.bias"])


def stepped(start: Tensors, teacher: Tensors, w: float, inputs: Tensor, y: Tensor) -> Tensors:
    """The weights after a step on the cross-entropy and w times the features' distance."""
    weights = {name: value.clone().requires_grad_() for name, value in start.items()}
    (z, logits), aim = outputs(weights, inputs), outputs(teacher, inputs)[0]
    loss = F.cross_entropy(logits, y) + w * F.mse_loss(z, aim)
    slopes = torch.autograd.grad(loss, list(weights.values()))
    return {n: (p - RATE * g).detach() for (n, p), g in zip(weights.items(), slopes, strict=True)}


def right(weights: Tensors, inputs: Tensor, y: Tensor) -> float:
    return float((outputs(weights, inputs)[1].argmax(dim=1) == y).float().mean())


def test_three_cycles_by_plain_loops() -> None:
    words = ["loss.lam=3", "loss.threshold=0.21", "loss.least=0.31", "loss.validation=0.3"]
    words += [
        *ONE_STEP,
        f"optimizer.lr={RATE}",
        "optimizer.round_decay=1",
        "rounds=12",
        "partition.beta=1",
    ]
    federation = federate(*SMALL, "algorithm=metafed", "clients.per_round=1", *words)
    teacher = copy(federation.server.weights)
    own: dict[int, Tensors] = {}
    good: set[int] = set()
    used = []
    for round in range(1, 13):
        client = (round - 1) % 4
        inputs, y = next(iter(federation.data.clients[client].batches(1000)))
        order = torch.randperm(len(y), generator=torch_generator(0, "own validation", client))
        held, rest = order[: int(0.3 * len(y))], order[int(0.3 * len(y)) :]
        start, w = teacher, 0.0
        if client in own:
            a, b = (right(each, inputs[held], y[held]) for each in (own[client], teacher))
            good |= {client} if a > 0.21 else set()
            if client in good:
                start, w = own[client], 3.0
                if round > 8:
                    followed = b > a or b >= 0.31
                    w = 3.0 * 10 ** min(1, 5 * (b - a)) / 10 if followed else 0.0
        used.append(w)
        own[client] = stepped(start, teacher, w, inputs[rest], y[rest])
        train(federation, round, [client])
        teacher = own[client] if round <= 8 else teacher
        for found, expected in (
            (federation.store.model(client), own[client]),
            (federation.server.weights, teacher),
        ):
            for name, value in expected.items():
                torch.testing.assert_close(found[name], value, rtol=1e-3, atol=1e-4)
    assert used[:4] == [0.0] * 4
    assert 3.0 in used[4:8]  # the case of a model that is good enough is among them
    assert any(0 < w < 3 for w in used[8:])


def test_turns_of_several_steps_by_plain_pytorch() -> None:
    """A turn goes on from the client's own model, with the teacher fixed while its batches last.

    In the last two rounds both clients have the same teacher, the model of round 4.
    """
    words = ["clients.count=2", "clients.per_round=1", "data.subset=120", "rounds=6"]
    words += ["local.epochs=2", "loss.lam=3", "loss.threshold=0.05", "loss.least=0.05"]
    words += ["optimizer.momentum=0", "optimizer.weight_decay=0", f"optimizer.lr={RATE}"]
    words += ["loss.validation=0.3"]
    federation = federate("algorithm=metafed", *words)
    teacher = copy(federation.server.weights)
    own: dict[int, Tensors] = {}
    for round in range(1, 7):
        client = (round - 1) % 2
        data = federation.data.clients[client]
        inputs, y = next(iter(data.batches(1000)))
        order = torch.randperm(len(y), generator=torch_generator(0, "own validation", client))
        held, rest = order.tensor_split([int(0.3 * len(y))])
        w, strength = own.get(client, teacher), 3.0 if client in own else 0.0
        if client in own:
            a, b = (right(each, inputs[held], y[held]) for each in (w, teacher))
            assert a > 0.05
            if round > 4:
                assert b >= 0.05
                strength = 3.0 * 10 ** min(1, 5 * (b - a)) / 10
        batches = data.subset(rest).local_batches(round, 16)
        for batch in [*batches, *batches]:
            w = stepped(w, teacher, strength, *batch)
        own[client] = w
        train(federation, round, [client])
        teacher = w if round <= 4 else teacher
        for found, expected in (
            (federation.store.model(client), w),
            (federation.server.weights, teacher),
        ):
            assert found.keys() == expected.keys()
            for name, value in expected.items():
                torch.testing.assert_close(found[name], value, rtol=1e-4, atol=1e-5)


def test_too_few_rounds_are_said(caplog: pytest.LogCaptureFixture) -> None:
    words = [*SMALL, "algorithm=metafed", "clients.per_round=1"]
    federate(*words, "rounds=8")
    assert not caplog.messages
    federate(*words, "rounds=7")
    (said,) = caplog.messages
    assert said.startswith("rounds=7: the last 4 rounds personalize")
    assert said.endswith("use at least rounds=8")


def test_a_cycle_counts_the_updates_of_server_steps(caplog: pytest.LogCaptureFixture) -> None:
    """Two of the four clients are in flight, but each server step takes one update."""
    federate(*SMALL, "loss=cyclic_distillation", "rounds=7", *ONE_BY_ONE)
    assert "rounds=7: the last 4 rounds personalize" in caplog.text


def test_a_separate_personal_model_has_no_teacher_and_is_not_replaced() -> None:
    words = [*SMALL, "algorithm=ditto", "personalization.lam=0", "loss=cyclic_distillation"]
    taught, untaught = (federate(*words, "rounds=9", f"loss.threshold={n}") for n in (0, 1))
    for round in (1, 2, 3):
        for federation in (taught, untaught):
            train(federation, round, (0, 1))
    assert not equal(taught.server.weights, untaught.server.weights)
    for client in (0, 1):
        assert equal(taught.store.model(client), untaught.store.model(client))


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["vectorized", "trainer"])
def test_engines_agree(engine: str) -> None:
    words = [*SMALL, "loss=cyclic_distillation", "loss.threshold=0", "clients.per_round=4"]
    assert_engine_agrees(engine, [*words, "rounds=4"], rounds=4)
