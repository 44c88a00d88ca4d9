import math
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from support.draws import draw64
from support.federations import begin_client, equal, federate, take_step

from fedexp.core.forward import Forward, Outputs
from fedexp.core.messages import PartMessage, Tensors
from fedexp.core.part import Memory
from fedexp.errors import InputError
from fedexp.losses.moon import Moon, model_contrast
from fedexp.runtime.federation import Federation

SMALL = ["clients.count=6", "clients.per_round=4", "data.subset=300", "local.epochs=1"]


def slow_contrast(z: np.ndarray, glob: np.ndarray, previous: np.ndarray, tau: float) -> list[float]:
    """The paper's formula, sample by sample."""
    losses = []
    for own, g, p in zip(z, glob, previous, strict=True):
        near = math.exp(own @ g / np.linalg.norm(own) / np.linalg.norm(g) / tau)
        far = math.exp(own @ p / np.linalg.norm(own) / np.linalg.norm(p) / tau)
        losses.append(-math.log(near / (near + far)))
    return losses


@pytest.mark.parametrize("tau", [0.1, 0.5, 2.0])
def test_the_contrast_agrees_with_loops(tau: float) -> None:
    z, glob, previous = (draw64(5, 6, seed=seed) for seed in range(3))
    found = model_contrast(z, glob, previous, tau)
    expected = slow_contrast(z.numpy(), glob.numpy(), previous.numpy(), tau)
    assert found.tolist() == pytest.approx(expected, rel=1e-9)


def test_value_and_gradient_by_hand() -> None:
    # z = (1, 0): cosine 0 with (0, 2), -1 with (-3, 0); at tau 1/2 the logits are 0 and -2.
    # cos(z, a) falls away from a unit z by a / |a| - cos * z: (0, 1) and (0, 0).
    z = torch.tensor([[1.0, 0.0]], dtype=torch.float64, requires_grad=True)
    glob, previous = torch.tensor([[0.0, 2.0]]), torch.tensor([[-3.0, 0.0]])
    loss = model_contrast(z, glob.double(), previous.double(), 0.5)
    p = math.exp(-2) / (1 + math.exp(-2))  # the previous model's share
    assert loss.item() == pytest.approx(-math.log(1 - p))
    (slopes,) = torch.autograd.grad(loss.sum(), z)
    assert slopes[0].tolist() == pytest.approx([0, -p / 0.5])


def test_gradient_by_finite_differences() -> None:
    glob, previous = draw64(5, 6, seed=1), draw64(5, 6, seed=2)
    z = draw64(5, 6, seed=0).requires_grad_()
    assert torch.autograd.gradcheck(lambda z: model_contrast(z, glob, previous, 0.5), z)


def test_it_is_stable_at_a_tiny_temperature() -> None:
    z = torch.tensor([[1.0, 0.1], [-1.0, 0.1]], requires_grad=True)
    glob, previous = torch.tensor([[1.0, 0.0]] * 2), torch.tensor([[-1.0, 0.0]] * 2)
    losses = model_contrast(z, glob, previous, 1e-4)
    cosine = 1 / math.hypot(1, 0.1)
    assert losses.tolist() == pytest.approx([0, 2 * cosine / 1e-4], rel=1e-4)
    assert torch.autograd.grad(losses.sum(), z)[0].isfinite().all()


def test_where_both_models_agree_it_is_log_2_without_gradient() -> None:
    z, other = draw64(5, 6, seed=0).requires_grad_(), draw64(5, 6, seed=1)
    losses = model_contrast(z, other, other, 0.5)
    assert losses.tolist() == pytest.approx([math.log(2)] * 5)
    assert not torch.autograd.grad(losses.sum(), z)[0].any()


def test_the_loss_is_the_weighted_sum() -> None:
    z, logits, y = draw64(5, 6, seed=0), draw64(5, 4, seed=1), torch.tensor([0, 1, 2, 3, 0])
    references = {
        "global": Outputs(draw64(5, 6, seed=2), logits),
        "previous": Outputs(draw64(5, 6, seed=3), logits),
    }
    contrast = model_contrast(z, references["global"].z, references["previous"].z, 0.5)
    expected = F.cross_entropy(logits, y) + 5 * contrast.mean()
    torch.testing.assert_close(Moon(5.0, 0.5)(Forward(z, logits, y), **references), expected)


# In a federation.


def reference(federation: Federation, name: str) -> Tensors:
    module = federation.module
    return {n: buffer.clone() for n, buffer in module.frozen_copies[name].named_buffers()}


@pytest.mark.parametrize("head", ["linear", "etf", "prototype"])
def test_previous_is_the_model_that_the_client_last_trained(head: str) -> None:
    federation = federate(*SMALL, "loss=moon", f"head={head}", "local.grad_clip=10")
    engine: Any = federation.engine
    trained: dict[int, Tensors] = {}
    for round, cohort in enumerate(([0, 1], [1, 2], [0, 2]), start=1):
        message = federation.server.broadcast(round)
        start = {n: w.clone() for n, w in engine.resources.load_global(message).weights.items()}
        for client in cohort:
            begin_client(engine, client, message)
            assert equal(reference(federation, "global"), start)
            assert equal(reference(federation, "previous"), trained.get(client, start))
        updates = []
        for client in cohort:
            updates += list(engine.train([client], message))
            module = federation.module
            trained[client] = {name: weight.clone() for name, weight in module.weights.items()}
        take_step(federation.server, updates)


@pytest.mark.parametrize("engine", ["serial", "vectorized", "trainer"])
def test_previous_of_a_separate_personal_model_is_that_model(
    engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before its first turn it is the received model, as of the shared model."""
    federation = federate(*SMALL, "loss=moon", "personalization=ditto", f"engine={engine}")
    begin, seen = Moon.begin, {}

    def recorded(self: Moon, client: Any, message: PartMessage, memory: Memory) -> None:
        begin(self, client, message, memory)
        if client.is_personal:
            seen[client.data.client] = reference(federation, "previous")

    monkeypatch.setattr(Moon, "begin", recorded)
    before: dict[int, Tensors] = {}
    for round, cohort in enumerate(([0, 1], [1, 2], [0, 2]), start=1):
        message = federation.server.broadcast(round)
        received = {name: weight.clone() for name, weight in message.weights.items()}
        updates = list(federation.engine.train(cohort, message))
        for client in cohort:
            assert equal(seen[client], before.get(client, received))
            before[client] = {n: w.clone() for n, w in federation.store.model(client).items()}
        take_step(federation.server, updates)


def test_previous_of_a_tuned_model_is_the_model_that_the_client_trained() -> None:
    federation = federate(*SMALL, "loss=moon")
    engine: Any = federation.engine
    for round in (1, 2):
        message = federation.server.broadcast(round)
        (update,) = engine.train([0], message)
        engine.begin_tuning(0, message)
        assert equal(reference(federation, "previous"), update.weights)


def test_nothing_but_the_model_counts_in_a_clients_memory() -> None:
    federation = federate(*SMALL, "loss=moon")
    (update,) = federation.engine.train([0], federation.server.broadcast(1))
    sizes = [weight.nbytes for weight in update.weights.values()]
    assert update.metrics["cost/client_memory_bytes"] == sum(sizes)


def test_the_references_stay_while_the_model_moves() -> None:
    federation = federate(*SMALL, "loss=moon", "clients.per_round=6")
    federation.run_round(1)
    engine: Any = federation.engine
    message = federation.server.broadcast(2)
    begin_client(engine, 0, message)
    before = [reference(federation, name) for name in ("global", "previous")]
    list(engine.train([0], message))
    assert all(
        equal(old, reference(federation, name))
        for old, name in zip(before, ("global", "previous"), strict=True)
    )
    assert not equal(before[0], dict(federation.module.weights))


def test_a_clients_first_round_is_fedavg() -> None:
    """Both references are the global model then, and the contrast has no gradient."""
    small = [*SMALL, "clients.per_round=6"]
    fedavg, moon = federate(*small), federate(*small, "algorithm=moon")
    for round in (1, 2):
        plain = fedavg.run_round(round).metrics["train/loss"]
        contrasted = moon.run_round(round).metrics["train/loss"]
        assert equal(fedavg.server.weights, moon.server.weights) == (round == 1)
        if round == 1:
            assert contrasted == pytest.approx(plain + math.log(2), rel=1e-5)


def test_nothing_more_is_sent() -> None:
    plain, moon = federate(*SMALL), federate(*SMALL, "algorithm=moon")
    for round in (1, 2):
        one, other = plain.run_round(round).metrics, moon.run_round(round).metrics
        for name in ("cost/upload_bytes", "cost/download_bytes"):
            assert one[name] == other[name]


@pytest.mark.parametrize(
    "personalization", ["local", "lg_fedavg", "pfl_da", "fedgh", "fedmd", "fedfomo"]
)
def test_a_private_backbone_is_refused(personalization: str) -> None:
    with pytest.raises(InputError, match=r"with this personalization .* contrast is constant"):
        federate("loss=moon", f"personalization={personalization}")


@pytest.mark.parametrize("override", ["loss.mu=-1", "loss.temperature=0"])
def test_wrong_values_are_named(override: str) -> None:
    with pytest.raises(InputError, match=override):
        federate(*SMALL, "algorithm=moon", override)
