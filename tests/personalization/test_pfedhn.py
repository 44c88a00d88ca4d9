"""pFedHN: the server's steps against plain PyTorch in the order of the authors' code."""

import pytest
import torch
from support.federations import assert_engine_agrees, begin_client, equal, federate
from support.second_model import gradients_of_steps, steps_of_sgd
from support.small_federations import BATCHNORM, SMALL, copy, personal, personalized, train
from torch import nn

from fedexp.core.messages import Tensors
from fedexp.personalization.pfedhn import ModelMaker, PFedHN
from fedexp.runtime.federation import Federation
from fedexp.testing import check_part

SHAPES = {"a": torch.Size([2, 3]), "b": torch.Size([2])}


class PlainHypernetwork(nn.Module):
    """The same network with an embedding table and an output layer for each tensor."""

    def __init__(self, maker: ModelMaker) -> None:
        super().__init__()
        self.embedding = nn.Embedding.from_pretrained(maker.embeddings.detach().clone(), False)
        self.body = nn.Sequential(*(nn.Linear(1, 1) if i % 2 == 0 else nn.ReLU() for i in range(7)))
        for mine, given in zip(self.body, maker.body, strict=True):
            if isinstance(mine, nn.Linear) and isinstance(given, nn.Linear):
                mine.weight = nn.Parameter(given.weight.detach().clone())
                mine.bias = nn.Parameter(given.bias.detach().clone())
        self.shapes, self.outputs, start = maker.shapes, nn.ModuleList(), 0
        for shape in maker.shapes.values():
            layer = nn.Linear(1, 1)
            rows = slice(start, start := start + shape.numel())
            layer.weight = nn.Parameter(maker.last.weight[rows].detach().clone())
            layer.bias = nn.Parameter(maker.last.bias[rows].detach().clone())
            self.outputs.append(layer)

    def forward(self, client: int) -> Tensors:
        hidden = self.body(self.embedding(torch.tensor(client)))
        pairs = zip(self.shapes.items(), self.outputs, strict=True)
        return {name: layer(hidden).view(shape) for (name, shape), layer in pairs}


def part_of(federation: Federation) -> PFedHN:
    part = federation.server.parts["personalization"]
    assert isinstance(part, PFedHN)
    return part


def maker_of(federation: Federation) -> ModelMaker:
    network = part_of(federation)._network.network
    assert isinstance(network, ModelMaker)
    return network


def test_a_model_by_hand() -> None:
    """A body of one layer doubles the embedding; the outputs are 10 + the embedding's sum."""
    maker = ModelMaker(2, [2, 2], SHAPES)
    maker.embeddings.data = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    maker.body[0].weight.data, maker.body[0].bias.data = 2 * torch.eye(2), torch.zeros(2)
    maker.last.weight.data = torch.full((8, 2), 0.5)
    maker.last.bias.data = 10 + torch.arange(8.0)
    found = maker(1)
    assert found["a"].tolist() == [[17, 18, 19], [20, 21, 22]]
    assert found["b"].tolist() == [23, 24]
    assert maker(0)["a"][0, 0] == 13


@pytest.mark.parametrize("cohort", [(2,), (3, 0, 1)], ids=["as in the paper", "a cohort"])
def test_two_rounds_by_plain_pytorch(cohort: tuple[int, ...]) -> None:
    """autograd.grad with grad_outputs for each client, clipping, and a step of torch's SGD."""
    federation = personalized("pfedhn", "personalization.clip=0.1")
    plain = PlainHypernetwork(maker_of(federation))
    parameters = list(plain.parameters())
    optimizer = torch.optim.SGD(parameters, lr=0.01, momentum=0.9, weight_decay=1e-3)
    for round in (1, 2):
        train(federation, round, cohort)
        optimizer.zero_grad()
        for client in cohort:
            made, trained = plain(client), federation.store.model(client)
            deltas = [(value - trained[name]).detach() for name, value in made.items()]
            slopes = torch.autograd.grad(list(made.values()), parameters, grad_outputs=deltas)
            for parameter, slope in zip(parameters, slopes, strict=True):
                given = 0 if parameter.grad is None else parameter.grad
                parameter.grad = given + slope / len(cohort)
        assert nn.utils.clip_grad_norm_(parameters, 0.1) > 0.1
        optimizer.step()
        message = federation.server.broadcast(round + 1)
        for client in range(4):
            weights = message.to_client(client).weights
            for name, value in plain(client).items():
                torch.testing.assert_close(weights[name], value.detach(), atol=1e-6, rtol=1e-5)


def test_a_round_by_plain_pytorch() -> None:
    """The client's steps of SGD from the model that is made, and the server's step after them."""
    federation = personalized("pfedhn", "local.epochs=2")
    plain = PlainHypernetwork(maker_of(federation))
    parameters = list(plain.parameters())
    optimizer = torch.optim.SGD(parameters, lr=0.01, momentum=0.9, weight_decay=1e-3)
    made = plain(1)
    w = steps_of_sgd(made, gradients_of_steps(federation, 1, 16, 2, client=1))
    changes = [value.detach() - w[name] for name, value in made.items()]
    found = torch.autograd.grad(list(made.values()), parameters, grad_outputs=changes)
    for parameter, slope in zip(parameters, found, strict=True):
        parameter.grad = slope
    nn.utils.clip_grad_norm_(parameters, 50)
    optimizer.step()
    train(federation, 1, (1,))
    trained, message = federation.store.model(1), federation.server.broadcast(2)
    for name, value in w.items():
        torch.testing.assert_close(trained[name], value, atol=1e-5, rtol=1e-4)
    for client in (0, 1):
        weights = message.to_client(client).weights
        for name, value in plain(client).items():
            torch.testing.assert_close(weights[name], value.detach(), atol=1e-6, rtol=1e-5)


def test_a_client_trains_the_model_that_the_server_makes() -> None:
    federation = personalized("pfedhn")
    module = begin_client(federation.engine, 1, federation.server.broadcast(1))
    made = copy(maker_of(federation)(1))
    assert equal({name: module.weights[name] for name in made}, made)


def test_a_step_lowers_the_loss_of_the_client_that_trained() -> None:
    """It would rise if the server stepped along the change, not against it."""
    federation = personalized("pfedhn", "personalization.weight_decay=0")
    train(federation, 1, (0,))
    before = personal(federation, 2)[0].loss
    train(federation, 2, (0,))
    assert personal(federation, 3)[0].loss < before


def test_the_personal_model_is_the_one_that_the_server_makes() -> None:
    """A client's personal model changes in a round in which another client trains."""
    federation = personalized("pfedhn")
    train(federation, 1, (0, 1))
    before = personal(federation, 2)[0].loss
    train(federation, 2, (1,))
    assert personal(federation, 3)[0].loss != before


def test_the_width_of_an_embedding_follows_the_population() -> None:
    assert maker_of(personalized("pfedhn")).embeddings.shape == (4, 2)
    own = personalized("pfedhn", "personalization.embedding_dim=7")
    assert maker_of(own).embeddings.shape == (4, 7)


def test_buffers_are_the_global_model_s() -> None:
    federation = personalized("pfedhn", *BATCHNORM)
    train(federation, 1)
    message = federation.server.broadcast(2)
    name = "backbone.2.running_mean"
    assert torch.equal(message.to_client(1).weights[name], federation.server.weights[name])


def test_the_bytes_are_fedavg_s() -> None:
    federation = federate(*SMALL, "algorithm=pfedhn")
    size = 4 * (64 * 128 + 128 + 128 * 64 + 64 + 64 * 10 + 10)
    metrics = federation.run_round(1).metrics
    assert metrics["cost/download_bytes"] == metrics["cost/upload_bytes"] == 2 * size
    assert "global/accuracy" not in metrics


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["vectorized", "trainer"])
def test_every_engine_gives_the_same_models(engine: str) -> None:
    assert_engine_agrees(engine, [*SMALL, "algorithm=pfedhn"], 3)


@pytest.mark.slow
def test_the_contract() -> None:
    check_part("personalization=pfedhn", "head=prototype", "local.grad_clip=10")
