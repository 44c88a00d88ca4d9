from typing import Any

import pytest
import torch
from support.federations import begin_client, federate
from torch import Tensor, nn

from fedexp.aggregators.coordinatewise import Median
from fedexp.core.client import ClientModule
from fedexp.core.functional import functional, functional_head
from fedexp.core.messages import Message
from fedexp.core.part import Part, Setting
from fedexp.core.sockets import LocalGradient, Personalization, Regularizer, Sockets
from fedexp.heads.linear import Linear
from fedexp.losses.cross_entropy import CrossEntropy
from fedexp.runtime.federation import Federation

SMALL = ["clients.count=4", "clients.per_round=4", "data.subset=200", "local.epochs=1"]


def after_a_round(*overrides: str) -> Federation:
    federation = federate(*SMALL, "local.grad_clip=10", "partition.beta=0.05", *overrides)
    federation.run_round(1)
    return federation


def inputs() -> Tensor:
    return torch.randn(7, 1, 8, 8, generator=torch.Generator().manual_seed(0))


HEADS = ["linear", "etf", "prototype"]


@pytest.mark.parametrize("head", HEADS)
def test_it_is_the_global_model_whatever_the_module_is_now(head: str) -> None:
    federation = after_a_round(f"head={head}")
    message = federation.server.broadcast(2)
    module = begin_client(federation.engine, 0, message).train()
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(1)
    before = {name: value.clone() for name, value in module.state_dict().items()}
    found = module.global_model()({}, inputs())
    assert module.training
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())
    expected = federation.engine.resources.load_global(message).eval()(inputs())
    assert expected.isfinite().all()
    assert torch.equal(found, expected)


@pytest.mark.parametrize("head", HEADS)
def test_the_server_has_it_with_the_head_that_the_next_message_has(
    head: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings: list[Setting] = []
    monkeypatch.setattr(Regularizer, "setup", lambda _, setting: settings.append(setting))
    federation = after_a_round(f"head={head}")
    begin_client(federation.engine, 1, federation.server.broadcast(1))
    (setting,) = settings
    assert setting.model.input_shape == (1, 8, 8)
    found = setting.server.global_model(2, federation.server.weights)({}, inputs())
    module = federation.engine.resources.load_global(federation.server.broadcast(2))
    assert torch.equal(found, module.eval()(inputs()))


def module_with(backbone: nn.Module) -> ClientModule:
    optimizer: Any = torch.optim.SGD
    parts = Linear(3, 2, True), CrossEntropy(), Personalization(), Regularizer(), LocalGradient()
    return ClientModule(backbone, Sockets(*parts, Part(), Median()), optimizer)


def test_neither_dropout_nor_batch_statistics() -> None:
    module = module_with(nn.Sequential(nn.BatchNorm1d(3), nn.Dropout(0.5))).train()
    message = Message(1, {name: value.clone() for name, value in module.weights.items()})
    message.weights["backbone.0.running_mean"].fill_(2.0)
    state = torch.get_rng_state()
    x = torch.randn(5, 3, generator=torch.Generator().manual_seed(0))
    found = functional(module, message)({}, x)
    assert torch.equal(torch.get_rng_state(), state)
    assert module.backbone.get_buffer("0.running_mean").tolist() == [0, 0, 0]
    z = (x - 2) / (1 + 1e-5) ** 0.5
    expected = z @ message.weights["head.linear.weight"].T + message.weights["head.linear.bias"]
    torch.testing.assert_close(found, expected)


def test_what_it_is_called_with_replaces_what_the_message_has() -> None:
    module = module_with(nn.Identity())
    module.train_only(())  # as the last client's last phase may have left it
    model = functional(module, Message(1, module.weights))
    bias = torch.tensor([3.0, 4.0], requires_grad=True)
    weight = torch.zeros(2, 3)
    found = model({"head.linear.weight": weight, "head.linear.bias": bias}, torch.ones(5, 3))
    assert found.tolist() == [[3, 4]] * 5
    (gradient,) = torch.autograd.grad(found.sum(), bias)
    assert gradient.tolist() == [5, 5]


def test_weights_that_stay_with_the_client_are_its_own() -> None:
    module = module_with(nn.Identity())
    shared = {"head.linear.weight": torch.zeros(2, 3)}
    found = functional(module, Message(1, shared))({}, torch.ones(1, 3))
    assert torch.equal(found[0], module.weights["head.linear.bias"])


@pytest.mark.parametrize("head", HEADS)
def test_the_head_alone_is_that_of_the_next_global_model(
    head: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings: list[Setting] = []
    monkeypatch.setattr(Regularizer, "setup", lambda _, setting: settings.append(setting))
    federation = after_a_round(f"head={head}")
    message = federation.server.broadcast(2)
    module = federation.engine.resources.load_global(message).eval()
    with torch.no_grad():
        z = module.backbone(inputs())
        expected = module.head(z)
    # With the head of a client.
    begin_client(federation.engine, 1, federation.server.broadcast(1)).train()
    before = {name: value.clone() for name, value in module.state_dict().items()}
    found = settings[0].server.head(2)(federation.server.weights, z)
    assert torch.equal(found, expected)
    assert module.head.training
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())


def test_the_head_takes_the_weights_that_it_is_called_with() -> None:
    weights = {"head.linear.weight": torch.zeros(2, 3), "head.linear.bias": torch.tensor([3.0, 4])}
    weights["backbone.0.weight"] = torch.zeros(1)  # ignored
    found = functional_head(Linear(3, 2, True), Message(1, {}))(weights, torch.ones(5, 3))
    assert found.tolist() == [[3, 4]] * 5
