"""pFedLA: shares and mixtures by hand, and the server's step against plain PyTorch."""

import pytest
import torch
import torch.nn.functional as F
from support.federations import assert_engine_agrees, equal, federate
from support.second_model import gradients_of_steps, steps_of_sgd
from support.small_federations import BATCHNORM, SMALL, copy, personalized, train
from torch import Tensor

from fedexp.core.messages import Message, Tensors
from fedexp.personalization.pfedla import LayerShares, PFedLA
from fedexp.runtime.federation import Federation
from fedexp.testing import check_part

LAYERS = ["backbone.1.0", "backbone.1.2", "head.linear"]


def part_of(federation: Federation) -> PFedLA:
    part = federation.server.parts["personalization"]
    assert isinstance(part, PFedLA)
    return part


def shares_by_hand() -> LayerShares:
    """The values before the last ReLU are [[1, 3, -2], [-1, 0, -5]]."""
    network = LayerShares(layers=2, clients=3, embedding_dim=2, hidden_dim=4)
    network.last.weight.data.zero_()
    network.last.bias.data = torch.tensor([1.0, 3.0, -2.0, -1.0, 0.0, -5.0])
    return network


def test_shares_by_hand() -> None:
    network = shares_by_hand()
    assert network(torch.ones(3)).tolist() == [[0.25, 0.75, 0], [0, 0, 0]]
    assert network(torch.tensor([0.0, 1, 1])).tolist() == [[0, 1, 0], [0, 0, 0]]


def test_shares_without_a_positive_value_have_a_finite_gradient() -> None:
    network = shares_by_hand()
    network(torch.tensor([0.0, 0, 1])).sum().backward()
    assert all(p.grad is not None and not p.grad.any() for p in network.parameters())


def test_shares_are_nearly_equal_at_first() -> None:
    torch.manual_seed(0)
    shares = LayerShares(3, 10, 100, 100)(torch.ones(10))
    torch.testing.assert_close(shares.sum(dim=1), torch.ones(3))
    assert 0.05 < shares.min() <= shares.max() < 0.2


def values(network: LayerShares) -> Tensor:
    """What the network gives before the division, by plain PyTorch."""
    hidden = network.embedding
    for n in (0, 2, 4):
        hidden = F.relu(F.linear(hidden, network.body[n].weight, network.body[n].bias))
    return F.relu(F.linear(hidden, network.last.weight, network.last.bias)).view(network.shape)


def mixed(shares: Tensor, models: dict[int, Tensors]) -> Tensors:
    """The mixture, layer by layer."""
    found: Tensors = {}
    for name in models[0]:
        row = shares[LAYERS.index(name.rpartition(".")[0])]
        found[name] = torch.stack([row[j] * model[name] for j, model in models.items()]).sum(0)
    return found


def sent(message: Message, client: int) -> Tensors:
    return message.to_client(client).weights


def test_two_rounds_by_plain_pytorch() -> None:
    federation = personalized("pfedla", "personalization.lr=0.5")
    part = part_of(federation)
    assert part._layers == LAYERS
    first = federation.server.broadcast(1)
    assert equal(sent(first, 0), federation.server.weights)
    train(federation, 1, (0, 1, 3))
    models = {client: copy(federation.store.model(client)) for client in (0, 1, 3)}
    network = part._network(1)
    some = values(network)[:, [0, 1, 3]]
    table = torch.zeros(3, 4).index_copy(1, torch.tensor([0, 1, 3]), some / some.sum(1, True))
    mixture = mixed(table, models)
    for name, value in sent(federation.server.broadcast(2), 1).items():
        torch.testing.assert_close(value, mixture[name].detach())
    train(federation, 2, (1, 2))
    trained = federation.store.model(1)
    deltas = [(value - trained[name]).detach() for name, value in mixture.items()]
    parameters = dict(network.named_parameters())
    slopes = torch.autograd.grad(list(mixture.values()), parameters.values(), grad_outputs=deltas)
    assert max(slope.abs().max() for slope in slopes) > 1e-4
    for (name, value), slope in zip(parameters.items(), slopes, strict=True):
        new = dict(part._network(1).named_parameters())[name]
        torch.testing.assert_close(new, value - 0.5 * slope, atol=1e-6, rtol=1e-4)
    models |= {client: copy(federation.store.model(client)) for client in (1, 2)}
    shares = values(part._network(1))
    expected = mixed(shares / shares.sum(1, keepdim=True), models)
    for name, value in sent(federation.server.broadcast(3), 1).items():
        torch.testing.assert_close(value, expected[name].detach())


def test_a_round_by_plain_pytorch() -> None:
    """A client's steps of SGD from its mixture, the server's step, and the next mixture."""
    federation = personalized("pfedla", "personalization.lr=0.5", "local.epochs=2")
    train(federation, 1, (0, 1, 2, 3))
    models = {client: copy(federation.store.model(client)) for client in range(4)}
    network = part_of(federation)._network(1)
    raw = values(network)
    mixture = mixed(raw / raw.sum(dim=1, keepdim=True), models)
    w = steps_of_sgd(mixture, gradients_of_steps(federation, 2, 16, 2, client=1))
    changes = [value.detach() - w[name] for name, value in mixture.items()]
    torch.autograd.backward(list(mixture.values()), changes)
    torch.optim.SGD(network.parameters(), lr=0.5).step()
    train(federation, 2, (1,))
    trained = federation.store.model(1)
    for name, value in w.items():
        torch.testing.assert_close(trained[name], value, atol=1e-5, rtol=1e-4)
    raw = values(network)
    following = mixed(raw / raw.sum(dim=1, keepdim=True), models | {1: w})
    for name, value in sent(federation.server.broadcast(3), 1).items():
        torch.testing.assert_close(value, following[name].detach(), atol=1e-5, rtol=1e-4)


def test_a_client_that_never_trained_gets_the_others_models() -> None:
    federation = personalized("pfedla")
    train(federation, 1, (1,))
    for name, value in sent(federation.server.broadcast(2), 3).items():
        torch.testing.assert_close(value, federation.store.model(1)[name])


def test_a_layer_without_shares_is_the_client_s_own() -> None:
    federation = personalized("pfedla")
    train(federation, 1)
    part = part_of(federation)
    own = dict(part._stored[0])
    own["network/last.bias"] = torch.tensor([-1e6] * 4 + [0.0] * 8)
    part._stored[0] = own
    weights = sent(federation.server.broadcast(2), 0)
    for name, value in federation.store.model(0).items():
        assert torch.equal(weights[name], value) == name.startswith("backbone.1.0")


def test_a_step_moves_shares_to_models_in_the_direction_of_the_change() -> None:
    """Client 1's model is where client 0 went; the released implementations lower its share."""
    part = PFedLA(4, 4, 1.0)
    network = LayerShares(1, 2, 4, 4)
    part._clients, part._trained, part._row = 2, frozenset(["w"]), {"w": 0}
    part._stored = {0: {"model/w": torch.zeros(2)}, 1: {"model/w": torch.ones(2)}}  # type: ignore[assignment]
    before = part._shares(network).detach()
    part._train(network, {"w": torch.full((2,), 2.0)})
    assert part._shares(network)[0, 1] > before[0, 1]


def test_buffers_are_mixed_with_their_layer_and_counters_are_the_client_s() -> None:
    federation = personalized("pfedla", *BATCHNORM)
    train(federation, 1, (0, 1))
    train(federation, 2, (0,))
    part = part_of(federation)
    models = {client: federation.store.model(client) for client in (0, 1)}
    shares = part._shares(part._network(0)).detach()[part._layers.index("backbone.2")]
    weights, name = sent(federation.server.broadcast(3), 0), "backbone.2.running_mean"
    mean = shares[0] * models[0][name] + shares[1] * models[1][name]
    torch.testing.assert_close(weights[name], mean)
    counter = "backbone.2.num_batches_tracked"
    assert weights[counter] == models[0][counter] == 2 * models[1][counter]


def test_the_bytes_are_fedavg_s() -> None:
    federation = federate(*SMALL, "algorithm=pfedla")
    size = 4 * (64 * 128 + 128 + 128 * 64 + 64 + 64 * 10 + 10)
    for round in (1, 2):
        metrics = federation.run_round(round).metrics
        assert metrics["cost/download_bytes"] == metrics["cost/upload_bytes"] == 2 * size
        assert "global/accuracy" not in metrics


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["vectorized", "trainer"])
def test_every_engine_gives_the_same_models(engine: str) -> None:
    assert_engine_agrees(engine, [*SMALL, "algorithm=pfedla"], 3)


@pytest.mark.slow
def test_the_contract() -> None:
    check_part("personalization=pfedla", "head=prototype", "local.grad_clip=10")
