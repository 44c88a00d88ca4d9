"""Initial weights of backbones and heads."""

from math import sqrt
from typing import Any

import pytest
import torch
from support.federations import federate
from test_backbones import backbone
from torch import nn

from fedexp.config.schema import Init
from fedexp.models.init import initialize


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 16, 5), nn.BatchNorm2d(16), nn.Flatten(), nn.Linear(64, 100))


def test_default_draws_nothing() -> None:
    made, state = network(), torch.get_rng_state()
    before = {name: value.clone() for name, value in made.state_dict().items()}
    initialize(made, "default")
    assert all(torch.equal(made.state_dict()[name], value) for name, value in before.items())
    assert torch.equal(torch.get_rng_state(), state)


def test_xavier_with_gain_of_relu() -> None:
    """Uniform in [-a, a], a = sqrt(2) sqrt(6 / (fan_in + fan_out)); biases and norms stay."""
    made = network()
    before = {name: value.clone() for name, value in made.state_dict().items()}
    initialize(made, "xavier_relu")
    for layer, fans in ((made[0], 25 * (3 + 16)), (made[3], 64 + 100)):
        bound = sqrt(2) * sqrt(6 / fans)
        assert 0.98 * bound < layer.weight.abs().max().item() <= bound
        assert layer.weight.std().item() == pytest.approx(bound / sqrt(3), rel=0.05)
    changed = {n for n, value in before.items() if not torch.equal(made.state_dict()[n], value)}
    assert changed == {"0.weight", "3.weight"}


def test_layer_default_is_uniform_whatever_was_drawn_before() -> None:
    """PyTorch draws weights and biases of convolutions uniformly in +- 1 / sqrt(fan_in)."""
    made = network()
    nn.init.constant_(made[0].weight, 100.0)
    nn.init.constant_(made[0].bias, 100.0)
    initialize(made, "layer_default")
    bound = 1 / sqrt(3 * 25)
    assert 0.98 * bound < made[0].weight.abs().max().item() <= bound
    assert made[0].bias.abs().max().item() <= bound


def weights(*overrides: str) -> dict[str, Any]:
    return federate(*overrides, "data.subset=200").engine.resources.initial


def test_the_key_reaches_backbone_and_linear_head_and_follows_the_seed() -> None:
    plain, xavier = weights(), weights("model.init=xavier_relu")
    assert plain.keys() == xavier.keys()
    changed = {name for name in plain if not torch.equal(plain[name], xavier[name])}
    assert changed == {name for name in plain if name.endswith("weight")}
    assert "head.linear.weight" in changed
    again, other = weights("model.init=xavier_relu"), weights("model.init=xavier_relu", "seed=1")
    assert all(torch.equal(xavier[name], again[name]) for name in xavier)
    assert not any(torch.equal(xavier[name], other[name]) for name in changed)


@pytest.mark.parametrize("head", ["etf", "prototype", "cosine"])
def test_heads_without_a_linear_layer_keep_their_own_weights(head: str) -> None:
    plain, xavier = weights(f"head={head}"), weights(f"head={head}", "model.init=xavier_relu")
    changed = {name for name in plain if not torch.equal(plain[name], xavier[name])}
    assert changed
    assert all(name.startswith("backbone.") for name in changed)


def test_kaiming_fan_out_draws_convolutions_as_torchvisions_resnets() -> None:
    """Normal with variance 2 / (16 channels x 25); linear layers, norms and biases stay."""
    made = network()
    before = {name: value.clone() for name, value in made.state_dict().items()}
    initialize(made, "kaiming_fan_out")
    weight = made[0].weight
    assert weight.std().item() == pytest.approx(sqrt(2 / (16 * 25)), rel=0.05)
    assert weight.abs().max().item() > 2 * weight.std().item()  # a uniform one ends at sqrt(3)
    changed = {n for n, value in before.items() if not torch.equal(made.state_dict()[n], value)}
    assert changed == {"0.weight"}


@pytest.mark.parametrize(
    ("init", "expected"),
    [
        ("default", ("uniform", "kaiming")),
        ("kaiming_fan_out", ("kaiming", "kaiming")),
        ("layer_default", ("uniform", "uniform")),
    ],
)
def test_initial_weights_of_a_resnet(init: Init, expected: tuple[str, str]) -> None:
    """The replaced stem has 3 x 9 inputs and 64 x 9 outputs, the block 512 x 9 of each."""
    made = backbone("resnet10", (3, 8, 8))
    initialize(made, init)
    for weight, distribution, inputs, outputs in (
        (made.conv1.weight, expected[0], 3 * 9, 64 * 9),
        (made.layer4[0].conv2.weight, expected[1], 512 * 9, 512 * 9),
    ):
        kaiming, uniform = sqrt(2 / outputs), 1 / sqrt(inputs) / sqrt(3)
        found = weight.std().item()
        assert found == pytest.approx(kaiming if distribution == "kaiming" else uniform, rel=0.1)
