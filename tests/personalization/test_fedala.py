"""FedALA against a plain loop, in all engines, and with other sockets."""

import math

import pytest
import torch
import torch.nn.functional as F
from support.federations import begin_client, compose
from support.small_federations import ONE_STEP, RATE, copy, gradient, moved, personalized, train

from fedexp.core.messages import Tensors
from fedexp.core.randomness import torch_generator
from fedexp.errors import InputError
from fedexp.runtime.federation import Federation
from fedexp.runtime.plan import plan
from fedexp.testing import check_part

TOP = ["head.linear.weight", "head.linear.bias"]


def plain_loop(
    federation: Federation, t: int, local: Tensors, weights: Tensors, epochs: int
) -> tuple[Tensors, Tensors]:
    """(W, where client 0 starts in this round) after some epochs with batches of at most 7."""
    data, start = federation.data.clients[0], federation.server.weights
    drawn = torch.randperm(
        data.num_samples, generator=torch_generator(0, "aggregation weights", t, 0)
    )[: data.num_samples // 2]
    model = federation.engine.resources.load_global(federation.server.broadcast(t))
    model.requires_grad_(requires_grad=False)
    for _ in range(epochs):
        for positions in drawn.tensor_split(math.ceil(len(drawn) / 7)):
            own = {name: weights[name].clone().requires_grad_() for name in TOP}
            mixed = {name: local[name] + own[name] * (start[name] - local[name]) for name in TOP}
            logits = torch.func.functional_call(model, mixed, (data.inputs(positions),))
            loss = F.cross_entropy(logits, data.labels[positions])
            slopes = torch.autograd.grad(loss, list(own.values()))  # the chain rule by autograd
            steps = dict(zip(TOP, slopes, strict=True))
            weights = {name: (own[name] - 5 * steps[name]).detach().clamp(0, 1) for name in TOP}
    mixture = {n: local[n] + weights[n] * (start[n] - local[n]) for n in TOP}
    return weights, copy(start) | mixture


OPTIONS = ["personalization.percent=50", "personalization.batch_size=7", "personalization.rate=5"]


@pytest.mark.parametrize("engine", ["serial", "vectorized", "trainer"])
def test_a_client_starts_from_the_mixture_of_a_plain_loop(engine: str) -> None:
    """Three epochs in the second round, one in the third, and one plain step of training."""
    federation = personalized(
        *("fedala", *OPTIONS, *ONE_STEP, "personalization.max_epochs=3"),
        *("personalization.tolerance=0", f"engine={engine}"),
    )
    weights = {name: torch.ones_like(federation.server.weights[name]) for name in TOP}
    train(federation, 1)
    for round, epochs in ((2, 3), (3, 1)):
        local = copy(federation.store.model(0))
        weights, start = plain_loop(federation, round, local, weights, epochs)
        assert all(0 < weights[name].mean() < 1 for name in TOP)
        g = gradient(federation, 0, federation.server.broadcast(round), start)
        train(federation, round)
        found = federation.store.model(0)
        memory = federation.store.memory(0, "personalization")
        for name in TOP:
            torch.testing.assert_close(memory[f"weight/{name}"], weights[name], atol=2e-5, rtol=0)
        for name, value in start.items():
            torch.testing.assert_close(found[name], value - RATE * g[name], atol=2e-5, rtol=0)


def test_in_its_first_round_a_client_starts_from_the_global_model() -> None:
    ala, plain = personalized("fedala"), personalized("none")
    for federation in (ala, plain):
        train(federation, 1)
    assert not moved(ala.server.weights, plain.server.weights)
    message = ala.server.broadcast(2)
    assert not moved(message.weights, copy(begin_client(ala.engine, 3, message).weights))
    changed = moved(message.weights, copy(begin_client(ala.engine, 0, message).weights))
    assert changed == set(TOP)  # the lower layers are the global model's


def test_the_first_learning_ends_when_the_losses_settle() -> None:
    """With a window of four epochs the fifth is the first that can end it."""
    ends = []
    for tolerance, epochs in ((1e9, 5), (0, 9)):
        settled, bounded = (
            personalized("fedala", *OPTIONS, *extra)
            for extra in (
                [f"personalization.tolerance={tolerance}", "personalization.max_epochs=9"],
                ["personalization.tolerance=0", f"personalization.max_epochs={epochs}"],
            )
        )
        starts = []
        for federation in (settled, bounded):
            federation.module.personalization.window = 4  # type: ignore[assignment]
            train(federation, 1)
            module = begin_client(federation.engine, 0, federation.server.broadcast(2))
            starts.append(copy(module.weights))
        assert not moved(*starts)
        ends.append(starts[0])
    assert moved(*ends)


def test_more_layers_than_the_model_has_are_refused() -> None:
    plan(compose("personalization=fedala", "personalization.top=3"))
    with pytest.raises(InputError, match=r"^personalization\.top=4: the model has 3 layers"):
        plan(compose("personalization=fedala", "personalization.top=4"))


def test_nothing_but_the_weights_is_sent() -> None:
    records = [personalized(name).run_round(1).metrics for name in ("fedala", "none")]
    for key in ("cost/upload_bytes", "cost/download_bytes"):
        assert records[0][key] == records[1][key]


@pytest.mark.slow
def test_the_contract() -> None:
    check_part("algorithm=fedala", "clients.per_round=4", "personalization.top=2")
