"""FedAS's alignment against plain PyTorch, and in federations."""

from typing import Any

import pytest
import torch
from support.small_federations import assert_models_agree, copy, moved, personalized, train
from torch import nn

from fedexp.core.messages import Tensors
from fedexp.core.randomness import torch_generator
from fedexp.personalization.fedas import distance_from_means
from fedexp.runtime.federation import Federation
from fedexp.testing import check_part

HEAD = {"head.linear.weight", "head.linear.bias"}
RATE = 0.3
ALIGNED = [
    *("algorithm=fedas", "personalization.align_epochs=2", f"personalization.align_lr={RATE}"),
    "personalization.align_batch_size=8",
]


def begun(federation: Federation, client: int, round: int) -> Tensors:
    """The client's weights at the start of local training."""
    with federation.store.open(client) as state:
        return copy(
            federation.engine.begin(client, federation.server.broadcast(round), state).weights
        )


def test_the_distance_by_hand() -> None:
    """Class 0: ((1 + 0) / 2 + (9 + 1) / 2) / 2 = 2.75; class 1: (4 + 0) / 2 = 2; class 2: none."""
    z = torch.tensor([[1.0, 0.0], [3.0, 1.0], [2.0, 5.0], [9.0, 9.0]])
    means = torch.tensor([[0.0, 0.0], [4.0, 5.0], [0.0, 0.0]])
    holds = torch.tensor([True, True, False])
    found = distance_from_means(z, torch.tensor([0, 0, 1, 2]), means, holds)
    assert found.item() == pytest.approx(2.75 + 2)


def test_the_first_round_starts_from_the_received_body() -> None:
    federation = personalized("fedas", *ALIGNED)
    assert not moved(copy(federation.engine.resources.initial), begun(federation, 0, 1))


def test_the_alignment_by_plain_pytorch() -> None:
    federation = personalized("fedas", *ALIGNED)
    train(federation, 1, (0, 1, 2))
    message = federation.server.broadcast(2)
    previous = copy(federation.store.model(1))
    data = federation.data.clients[1]
    ((inputs, labels),) = data.batches(1000)
    module = federation.engine.resources.load_global(message)
    body: Any = module.backbone
    module.load(previous)
    with torch.no_grad():
        old = body.eval()(inputs)
    means = {c: old[labels == c].mean(dim=0) for c in labels.unique().tolist()}
    module.load(message.weights)
    body.requires_grad_(True)
    optimizer = torch.optim.SGD(body.parameters(), lr=RATE)
    draw = torch_generator(0, "alignment", 2, 1)
    for _ in range(2):
        for chosen in torch.randperm(len(labels), generator=draw).split(8):
            z, y = body(inputs[chosen]), labels[chosen]
            loss = sum(
                nn.functional.mse_loss(z[y == c], means[c].expand_as(z[y == c]))
                for c in y.unique().tolist()
            )
            optimizer.zero_grad()
            loss.backward()  # type: ignore[union-attr]
            optimizer.step()
    expected = copy(module.weights)
    found = begun(federation, 1, 2)
    assert moved(dict(message.weights), found) == message.weights.keys()
    assert not moved({n: previous[n] for n in HEAD}, found)
    for name in message.weights:
        torch.testing.assert_close(found[name], expected[name], rtol=1e-5, atol=1e-6)


def test_the_alignment_brings_features_nearer_to_the_previous_ones() -> None:
    distances = []
    for rate in (1e-9, 0.05):
        federation = personalized("fedas", *ALIGNED, f"personalization.align_lr={rate}")
        train(federation, 1, (0, 1, 2))
        module: Any = federation.module
        ((inputs, labels),) = federation.data.clients[1].batches(1000)
        state = dict(federation.store.states())[1].memory("personalization")
        begun(federation, 1, 2)
        with torch.no_grad():
            z = module.backbone.eval()(inputs)
        distances.append(distance_from_means(z, labels, state["means"], state["holds"]).item())
    assert distances[1] < 0.9 * distances[0]


def test_only_the_body_and_one_number_are_sent() -> None:
    federation = personalized("fedas", "algorithm=fedas")
    body = 4 * (64 * 128 + 128 + 128 * 64 + 64)
    for round in (1, 2):
        metrics = federation.run_round(round).metrics
        assert metrics["cost/upload_bytes"] == 2 * (body + 4)
        assert metrics["cost/download_bytes"] == 2 * body


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["vectorized", "trainer"])
def test_every_engine_gives_the_same_models(engine: str) -> None:
    assert_models_agree(engine, ALIGNED)


@pytest.mark.slow
def test_the_contract() -> None:
    check_part("personalization=fedas", "head=prototype", "local.grad_clip=10")
