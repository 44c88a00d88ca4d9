"""The recurrent backbone: against ``torch.nn.LSTM``, stacked, and for which inputs it is."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from test_backbones import factory
from torch import Tensor, nn
from torch.func import functional_call, stack_module_state, vmap

from fedexp.core.description import Description
from fedexp.core.frozen_copies import FrozenCopy
from fedexp.errors import InputError
from fedexp.models.char_lstm import LSTM
from fedexp.models.shape import feature_dim, for_inputs, trains_on_one

TEXT = Description("play", (7,), tuple("abcde"), vocabulary=11)
IMAGES = Description("digits", (1, 8, 8), ("0", "1"))


def char_lstm(**overrides: Any) -> Callable[..., nn.Module]:
    return for_inputs(factory("char_lstm", **overrides), TEXT)


def small(**overrides: Any) -> nn.Module:
    torch.manual_seed(0)
    sizes = {"embedding_dim": 3, "hidden": 5, **overrides}
    return char_lstm(**sizes)(input_shape=(7,))


def tokens(*shape: int) -> Tensor:
    return torch.randint(11, shape, generator=torch.Generator().manual_seed(1))


def lstm_of(network: nn.Module) -> LSTM:
    return next(layer for layer in network.modules() if isinstance(layer, LSTM))


def test_widths_are_known_before_building() -> None:
    assert feature_dim(char_lstm(), (80,)) == 256
    assert feature_dim(char_lstm(hidden=6, feature_dim=4), (80,)) == 4
    assert trains_on_one(char_lstm(), (80,))


def test_number_of_parameters_of_leaf_s_and_of_fedgela_s_network() -> None:
    def count(**overrides: Any) -> int:
        build = partial(factory("char_lstm", **overrides), vocabulary=80)
        return sum(value.numel() for value in build(input_shape=(80,)).parameters())

    lstm = (8 * 1024 + 256 * 1024 + 2 * 1024) + (256 * 1024 + 256 * 1024 + 2 * 1024)
    assert count() == 80 * 8 + lstm
    projection = 2 * (256 * 256 + 256)
    assert count(feature_dim=256, projection="mlp") == 80 * 8 + lstm + projection


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("layers", [1, 2])
def test_it_computes_what_torch_s_lstm_does(layers: int, fused: bool) -> None:
    torch.manual_seed(0)
    own, reference = LSTM(3, 5, layers), nn.LSTM(3, 5, layers, batch_first=True)
    own.fused = fused
    assert own.state_dict().keys() == reference.state_dict().keys()
    reference.load_state_dict(own.state_dict())
    steps = torch.randn(4, 7, 3)
    expected = reference(steps)[0][:, -1]
    torch.testing.assert_close(own(steps), expected, atol=1e-6, rtol=1e-5)
    found = torch.autograd.grad(own(steps).square().sum(), list(own.parameters()))
    wanted = torch.autograd.grad(expected.square().sum(), list(reference.parameters()))
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other, atol=1e-6, rtol=1e-4)


def test_gradients_in_eval_mode_use_the_kernel_s_training_mode(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """DivFL takes such gradients, and cuDNN refuses the backward pass of its inference mode."""
    modes: list[bool] = []
    kernel = torch.lstm

    def note(*arguments: Any) -> Any:
        modes.append(arguments[6])  # the argument ``train``
        return kernel(*arguments)

    monkeypatch.setattr(torch, "lstm", note)
    own, steps = LSTM(3, 5, 1).eval(), torch.randn(4, 7, 3)
    own(steps).sum().backward()
    with torch.no_grad():
        own(steps)
    own.requires_grad_(False)(steps)
    own(steps.requires_grad_())
    own.train()(steps.detach())
    assert modes == [True, False, False, True, True]


def test_initial_weights_follow_the_law_of_torch_s_lstm() -> None:
    torch.manual_seed(0)
    own = torch.cat([value.flatten() for value in LSTM(8, 64, 2).parameters()])
    assert own.abs().max() <= 1 / 8
    assert own.std().item() == pytest.approx(1 / 8 / 3**0.5, rel=0.01)


@pytest.mark.parametrize("fused", [True, False])
def test_the_state_after_the_last_token_is_the_feature(fused: bool) -> None:
    network = small()
    lstm_of(network).fused = fused
    inputs = tokens(2, 7)
    other = inputs.clone()
    other[0, -1] = (other[0, -1] + 1) % 11
    z, moved = network(inputs), network(other)
    assert z.shape == (2, 5)
    assert not torch.allclose(z[0], moved[0])
    assert torch.equal(z[1], moved[1])


def test_stacked_clients() -> None:
    """Outputs and gradients of three clients at once, against the fused kernel one by one."""
    networks = [char_lstm(embedding_dim=3, hidden=5)(input_shape=(7,)) for _ in range(3)]
    inputs = tokens(3, 4, 7)
    expected = [network(x).square().sum() for network, x in zip(networks, inputs, strict=True)]
    wanted = [
        torch.autograd.grad(loss, list(network.parameters()))
        for loss, network in zip(expected, networks, strict=True)
    ]
    lstm_of(networks[0]).fused = False
    weights, buffers = stack_module_state(networks)
    stacked = vmap(partial(functional_call, networks[0]))((weights, buffers), (inputs,))
    losses = stacked.square().sum(dim=(1, 2))
    torch.testing.assert_close(losses, torch.stack(expected), rtol=1e-4, atol=1e-6)
    found = torch.autograd.grad(losses.sum(), list(weights.values()))
    for one, rows in zip(found, zip(*wanted, strict=True), strict=True):
        torch.testing.assert_close(one, torch.stack(rows), rtol=1e-4, atol=1e-6)


def test_matrix_products_have_second_derivatives() -> None:
    network = small(layers=1).double()
    lstm_of(network).fused = False
    weights = list(network.parameters())
    loss = network(tokens(3, 7)).square().mean()
    first = torch.autograd.grad(loss, weights, create_graph=True)
    torch.autograd.grad(sum(each.square().sum() for each in first), weights)


def test_a_frozen_copy_follows_its_weights() -> None:
    network, other = small(), small()
    copy = FrozenCopy(network, nn.Linear(5, 2))
    with torch.no_grad():
        for value in other.parameters():
            value.add_(0.1)
    copy.set({f"backbone.{name}": value for name, value in other.state_dict().items()})
    inputs = tokens(2, 7)
    torch.testing.assert_close(copy(inputs).z, other(inputs))
    assert not torch.allclose(copy(inputs).z, network(inputs))


@pytest.mark.parametrize("fused", [True, False])
def test_in_sixteen_bits(fused: bool) -> None:
    network = small(hidden=32)
    lstm_of(network).fused = fused
    inputs = tokens(4, 7)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        z = network(inputs)
    torch.testing.assert_close(z.float(), network(inputs), atol=0.02, rtol=0.05)


@pytest.mark.parametrize("option", ["mlp", "simple_cnn", "resnet18", "torchvision"])
def test_models_for_numbers_refuse_tokens_in_one_line(option: str) -> None:
    with pytest.raises(InputError, match=r"^model: .* takes numbers, .* use model=char_lstm$"):
        for_inputs(factory(option), TEXT)


def test_it_refuses_images_in_one_line() -> None:
    with pytest.raises(InputError, match=r"^model: char_lstm takes sequences .* 1x8x8 numbers"):
        for_inputs(factory("char_lstm"), IMAGES)


def test_a_model_for_numbers_is_left_as_it_is() -> None:
    build = factory("mlp")
    assert for_inputs(build, IMAGES) is build


@pytest.mark.parametrize("fused", [True, False])
def test_features_of_each_token(fused: bool) -> None:
    """The state after a token is the feature of the sequence that ends there."""
    per_token = replace(TEXT, per_token=True)
    build = for_inputs(factory("char_lstm", hidden=6, feature_dim=4), per_token)
    assert feature_dim(build, (7,), per_token=True) == 4
    torch.manual_seed(0)
    network = build(input_shape=(7,))
    torch.manual_seed(0)
    of_whole = char_lstm(hidden=6, feature_dim=4)(input_shape=(7,))
    for each in (network, of_whole):
        lstm_of(each).fused = fused
    sequences = tokens(3, 7)
    z = network(sequences)
    assert z.shape == (3, 7, 4)
    for length in range(1, 8):
        torch.testing.assert_close(z[:, length - 1], of_whole(sequences[:, :length]))


def test_a_model_without_features_of_each_token_is_refused_in_one_line() -> None:
    message = r"^model: char_lstm has features of shape \[2, 256\] .* not \[B, 7, d\]"
    with pytest.raises(InputError, match=message):
        feature_dim(char_lstm(), (7,), per_token=True)
