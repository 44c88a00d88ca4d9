"""``feature_dim``: which inputs fit, which do not, and that it draws and allocates nothing."""

from functools import partial

import pytest
import torch
from torch import Tensor, nn

from fedexp.errors import InputError
from fedexp.models.cnn import conv2cifar, simple_cnn
from fedexp.models.convnet import convnet
from fedexp.models.mixed import ClientGroup, mixed
from fedexp.models.mlp import mlp
from fedexp.models.resnet import resnet
from fedexp.models.shape import feature_dim, forward_flops, training_flops
from fedexp.models.zoo import torchvision_model

CONV2CIFAR = partial(conv2cifar, feature_dim=192)
SIMPLE = partial(simple_cnn, feature_dim=84, projection_dim=None)
CONVNET = partial(convnet, width=4, depth=4, feature_dim=None, projection="linear_relu")
RESNET = partial(
    resnet,
    block="basic",
    layers=[1, 1, 1, 1],
    norm="group",
    groups=2,
    norm_in_blocks=True,
    stem="cifar",
    feature_dim=None,
    projection="linear_relu",
)
TORCHVISION = partial(torchvision_model, weights=None, feature_dim=None, projection="linear_relu")
VIT = partial(TORCHVISION, name="vit_b_16")


@pytest.mark.parametrize(
    ("build", "input_shape", "parts"),
    [
        (CONV2CIFAR, (1, 8, 8), ["conv2cifar", "1x8x8", "Kernel size"]),
        (CONV2CIFAR, (3, 13, 13), ["conv2cifar", "3x13x13", "Kernel size"]),
        (CONV2CIFAR, (3, 15, 15), ["conv2cifar", "3x15x15", "Output size is too small"]),
        (CONVNET, (3, 8, 8), ["convnet", "3x8x8", "size [1, 4, 1, 1]"]),
        (SIMPLE, (2,), ["simple_cnn", "inputs of 2 ", "[channels, height, width]"]),
        (SIMPLE, (32, 32), ["simple_cnn", "32x32", "[channels, height, width]"]),
        (RESNET, (2,), ["resnet", "inputs of 2 ", "[channels, height, width]"]),
        (VIT, (3, 32, 32), ["torchvision_model", "3x32x32", "Expected 224"]),
        (VIT, (2, 224, 224), ["torchvision_model", "2x224x224", "1 or 3 channels"]),
    ],
)
def test_a_model_that_does_not_fit(
    build: partial[nn.Module], input_shape: tuple[int, ...], parts: list[str]
) -> None:
    with pytest.raises(InputError) as caught:
        feature_dim(build, input_shape)
    message = str(caught.value)
    assert message.startswith("model: ")
    assert message.endswith(("; try model=mlp, or images of another size", "; try model=mlp"))
    assert "\n" not in message
    for part in parts:
        assert part in message


@pytest.mark.parametrize(("side", "fits"), [(15, False), (16, True), (17, True)])
def test_smallest_image_of_conv2cifar(side: int, fits: bool) -> None:
    """16 - 4 = 12, halved 6, - 4 = 2, halved 1; one pixel less leaves 1 before the last pool."""
    if fits:
        assert feature_dim(CONV2CIFAR, (3, side, side)) == 192
    else:
        with pytest.raises(InputError):
            feature_dim(CONV2CIFAR, (3, side, side))


class Images(nn.Module):
    """Not a backbone: its output keeps height and width."""

    def __init__(self, input_shape: tuple[int, ...]) -> None:
        super().__init__()

    def forward(self, x: Tensor) -> Tensor:
        return x


@pytest.mark.parametrize(("input_shape", "shape"), [((3, 4, 4), "[2, 3, 4, 4]"), ((0,), "[2, 0]")])
def test_features_must_be_vectors(input_shape: tuple[int, ...], shape: str) -> None:
    with pytest.raises(InputError, match="model: Images does not fit") as caught:
        feature_dim(Images, input_shape)
    assert shape in str(caught.value)


@pytest.mark.parametrize(
    "build",
    [
        partial(mlp, hidden=[4], feature_dim=2, rectify=True, batch_norm=False),
        RESNET,
        partial(TORCHVISION, name="regnet_x_400mf"),
    ],
)
def test_it_draws_no_random_numbers(build: partial[nn.Module]) -> None:
    before = torch.get_rng_state()
    feature_dim(build, (3, 32, 32))
    assert torch.equal(torch.get_rng_state(), before)


def test_it_allocates_nothing() -> None:
    """Four terabytes of weights would not fit."""
    assert (
        feature_dim(
            partial(mlp, hidden=[10**6, 10**6], feature_dim=3, rectify=True, batch_norm=False), (2,)
        )
        == 3
    )


def test_operations_of_a_forward_pass_by_hand() -> None:
    build = partial(mlp, hidden=[7], feature_dim=2, rectify=True, batch_norm=False)
    assert forward_flops(build, (1, 3, 5), batch=4) == 2 * 4 * (15 * 7 + 7 * 2)


def small_mlp(hidden: list[int]) -> dict[str, object]:
    rest = {"feature_dim": 2, "rectify": True, "batch_norm": False}
    return {"_target_": "fedexp.models.mlp.mlp", "hidden": hidden, **rest}


def test_training_has_a_forward_pass_and_the_gradients_of_weights_and_of_hidden_inputs() -> None:
    """Hand-derived: the first layer needs no gradient of its inputs; the head has four outputs."""
    build = partial(mlp, hidden=[7], feature_dim=2, rectify=True, batch_norm=False)
    found = training_flops(build, (1, 3, 5), num_classes=4, num_clients=3)
    assert found.tolist() == [2 * (2 * 15 * 7 + 3 * 7 * 2 + 3 * 2 * 4)] * 3


def test_the_operations_of_a_client_are_those_of_its_own_backbone() -> None:
    groups = {
        "deep": ClientGroup(share=1, model=small_mlp([7])),
        "flat": ClientGroup(share=2, model=small_mlp([])),
    }
    found = training_flops(partial(mixed, groups=groups), (1, 3, 5), num_classes=4, num_clients=4)
    deep, flat = 2 * (2 * 15 * 7 + 3 * 7 * 2 + 3 * 2 * 4), 2 * (2 * 15 * 2 + 3 * 2 * 4)
    assert found.tolist() == [flat, deep, flat, flat]


@pytest.mark.parametrize("build", [CONV2CIFAR, partial(TORCHVISION, name="regnet_x_400mf")])
def test_counting_operations_draws_no_random_numbers(build: partial[nn.Module]) -> None:
    before = torch.get_rng_state()
    one = forward_flops(build, (3, 32, 32), batch=1)  # also where BatchNorm could not train
    assert forward_flops(build, (3, 32, 32), batch=3) == 3 * one > 0
    assert torch.equal(torch.get_rng_state(), before)
