"""Every shipped backbone: widths, numbers of parameters, layers, second derivatives, vmap."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from torch import Tensor, nn
from torch.func import functional_call, stack_module_state, vmap

from fedexp.config import build as config_build
from fedexp.errors import InputError
from fedexp.models.layers import flat_width
from fedexp.models.shape import feature_dim

CONF = Path(__file__).parents[2] / "conf" / "model"
COLOUR, GREY, SMALL = (3, 32, 32), (1, 28, 28), (3, 8, 8)

# Option: inputs it is meant for, and the width of its features there.
BACKBONES: dict[str, tuple[tuple[int, ...], int]] = {
    "mlp": ((64,), 64),
    "conv2cifar": (COLOUR, 192),
    "simple_cnn": (COLOUR, 84),
    "hics_fmnist": (GREY, 512),
    "hics_cifar": (COLOUR, 64),
    "convnet": (COLOUR, 128 * 4 * 4),
    "resnet10": (COLOUR, 512),
    "resnet18": (COLOUR, 512),
    "resnet50": (COLOUR, 2048),
    "mobilenet_v2": (COLOUR, 1280),
    "efficientnet_b0": (COLOUR, 1280),
    "torchvision": (COLOUR, 1024),
}
PROJECTED = ["convnet", "resnet10", "resnet18", "mobilenet_v2", "efficientnet_b0"]
# Small enough to train in a test, and without running statistics.
STATELESS = [
    ("mlp", (6,), {}),
    ("simple_cnn", (1, 20, 20), {}),
    ("hics_fmnist", (1, 20, 20), {}),
    ("hics_cifar", (1, 20, 20), {"dropout": 0.0}),
    ("convnet", SMALL, {"width": 4, "depth": 2}),
    ("resnet10", SMALL, {}),
    ("mobilenet_v2", SMALL, {"norm": "group"}),
]


def factory(option: str, **overrides: Any) -> Callable[..., nn.Module]:
    node = yaml.safe_load((CONF / f"{option}.yaml").read_text())
    build: Callable[..., nn.Module] = config_build.build(
        "model", node | overrides, nn.Module, ("input_shape", "vocabulary")
    )
    return build


def backbone(option: str, input_shape: tuple[int, ...], **overrides: Any) -> nn.Module:
    torch.manual_seed(0)
    return factory(option, **overrides)(input_shape=input_shape)


def count(network: nn.Module) -> int:
    return sum(parameter.numel() for parameter in network.parameters())


def test_every_option_is_tested() -> None:
    elsewhere = {"char_lstm", "custom", "logistic", "mixed", "timm", "hf"}  # in files of their own
    assert {path.stem for path in CONF.glob("*.yaml")} == BACKBONES.keys() | elsewhere


@pytest.mark.parametrize("option", BACKBONES)
def test_width_is_known_before_building(option: str) -> None:
    input_shape, width = BACKBONES[option]
    assert feature_dim(factory(option), input_shape) == width
    assert backbone(option, input_shape)(torch.rand(2, *input_shape)).shape == (2, width)


@pytest.mark.parametrize("option", sorted(BACKBONES.keys() - {"hics_fmnist"}))
def test_a_given_width_is_the_last_layer(option: str) -> None:
    input_shape, _ = BACKBONES[option]
    build = factory(option, feature_dim=7)
    assert feature_dim(build, input_shape) == 7
    z = build(input_shape=input_shape)(torch.randn(8, *input_shape))
    assert z.shape == (8, 7)
    assert (z >= 0).all()


@pytest.mark.parametrize("option", PROJECTED)
def test_an_mlp_projection_keeps_the_sign_of_its_features(option: str) -> None:
    input_shape, width = BACKBONES[option]
    plain = backbone(option, input_shape)
    projected = backbone(option, input_shape, feature_dim=7, projection="mlp")
    assert count(projected) - count(plain) == (width * width + width) + (width * 7 + 7)
    assert (projected(torch.randn(8, *input_shape)) < 0).any()


def test_the_mlp_projection_by_hand() -> None:
    images = torch.rand(2, *COLOUR)
    projected = backbone("resnet10", COLOUR, feature_dim=7, projection="mlp")
    first, last = [layer for layer in projected.modules() if isinstance(layer, nn.Linear)]
    hidden = (backbone("resnet10", COLOUR)(images) @ first.weight.T + first.bias).clamp(min=0)
    torch.testing.assert_close(projected(images), hidden @ last.weight.T + last.bias)


@pytest.mark.parametrize("option", PROJECTED)
def test_a_linear_projection_by_hand(option: str) -> None:
    input_shape, width = BACKBONES[option]
    inputs = torch.rand(8, *input_shape)
    plain = backbone(option, input_shape).eval()
    projected = backbone(option, input_shape, feature_dim=7, projection="linear").eval()
    assert count(projected) - count(plain) == width * 7 + 7
    last = [layer for layer in projected.modules() if isinstance(layer, nn.Linear)][-1]
    expected = plain(inputs) @ last.weight.T + last.bias
    torch.testing.assert_close(projected(inputs), expected)
    assert (expected < 0).any()


@pytest.mark.parametrize("option", BACKBONES)
def test_no_layer_works_in_place(option: str) -> None:
    network = backbone(option, BACKBONES[option][0])
    assert not any(getattr(module, "inplace", False) for module in network.modules())


@pytest.mark.parametrize(
    ("option", "expected"),
    [
        (
            "conv2cifar",
            (64 * 3 * 25 + 64) + (64 * 64 * 25 + 64) + (1600 * 384 + 384) + (384 * 192 + 192),
        ),
        (
            "simple_cnn",
            (6 * 3 * 25 + 6) + (16 * 6 * 25 + 16) + (400 * 120 + 120) + (120 * 84 + 84),
        ),
        (
            "hics_cifar",
            (32 * 3 * 9 + 32) + (64 * 32 * 9 + 64) + (64 * 64 * 9 + 64) + (1024 * 64 + 64),
        ),
        ("hics_fmnist", (32 * 25 + 32) + (32 * 32 * 25 + 32)),
        ("convnet", (128 * 3 * 9 + 128) + 2 * (128 * 128 * 9 + 128) + 3 * 2 * 128),
        ("mlp", (64 * 128 + 128) + (128 * 64 + 64)),
        # The published 11,689,512 of ResNet18, less its 512-1000 classifier, less the part of the
        # 7x7 stem that a 3x3 one does not have.
        ("resnet18", 11_689_512 - (512 * 1000 + 1000) - 64 * 3 * (49 - 9)),
        # The same of the published 25,557,032 of ResNet50, whose classifier has 2048 inputs.
        ("resnet50", 25_557_032 - (2048 * 1000 + 1000) - 64 * 3 * (49 - 9)),
        # The published 5,288,548 of EfficientNet-B0, less its 1280-1000 classifier.
        ("efficientnet_b0", 5_288_548 - (1280 * 1000 + 1000)),
        # The published 3,504,872 of MobileNetV2, less its 1280-1000 classifier.
        ("mobilenet_v2", 3_504_872 - (1280 * 1000 + 1000)),
    ],
)
def test_number_of_parameters(option: str, expected: int) -> None:
    assert count(backbone(option, BACKBONES[option][0])) == expected


def layer_names(network: nn.Module) -> list[str]:
    """Class names of the layers in order, containers left out."""
    return [type(layer).__name__ for layer in network.modules() if not list(layer.children())]


def test_simple_cnn_with_moons_projection_by_hand() -> None:
    """84 features, Linear(84, 84)-ReLU-Linear(84, 256): z is the last layer's outputs."""
    images = torch.rand(2, *COLOUR)
    features = backbone("simple_cnn", COLOUR)(images)
    projected = backbone("simple_cnn", COLOUR, projection_dim=256)
    first, last = [each for each in projected.modules() if isinstance(each, nn.Linear)][-2:]
    hidden = (features @ first.weight.T + first.bias).clamp(min=0)
    z = projected(images)
    torch.testing.assert_close(z, hidden @ last.weight.T + last.bias)
    assert z.shape == (2, 256)
    assert (z < 0).any()


@pytest.mark.parametrize(
    ("blocks", "between"),
    [("relu", ["LevelReLU"]), ("prelu_batchnorm", ["PReLU", "BatchNorm2d"])],
)
def test_layers_of_hics_fmnist(blocks: str, between: list[str]) -> None:
    block = ["Conv2d", *between, "MaxPool2d"]
    network = backbone("hics_fmnist", GREY, blocks=blocks, dropout=0.2)
    assert layer_names(network) == [*block, *block, "Dropout", "Flatten"]
    assert [m.p for m in network.modules() if isinstance(m, nn.Dropout)] == [0.2]
    # One slope a PReLU; BatchNorm has a scale and a shift for each of 32 filters.
    more = 2 * (1 + 2 * 32) if blocks == "prelu_batchnorm" else 0
    assert count(network) - count(backbone("hics_fmnist", GREY)) == more


def test_layers_of_hics_cifar() -> None:
    block = ["Conv2d", "LevelReLU", "MaxPool2d", "Dropout"]
    network = backbone("hics_cifar", COLOUR, dropout=0.3)
    assert layer_names(network) == [
        *(*block, *block, "Conv2d", "Dropout"),
        *("Flatten", "Linear", "ReLU"),
    ]
    assert [m.p for m in network.modules() if isinstance(m, nn.Dropout)] == [0.3] * 3


def test_finding_the_width_leaves_batch_norm_statistics_alone() -> None:
    trunk = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout(0.5))
    state = torch.get_rng_state()
    assert flat_width(trunk, (3,)) == 4
    assert trunk[1].running_mean.tolist() == [0] * 4
    assert trunk[1].num_batches_tracked == 0
    assert all(module.training for module in trunk.modules())
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize(("shape", "width"), [(GREY, 2048), (COLOUR, 2048), ((1, 32, 32), 2048)])
def test_width_of_convnet(shape: tuple[int, ...], width: int) -> None:
    """28x28 in grey: 32, halved 16, 8, 4. 32x32 in grey: 36, halved 18, 9, 4."""
    assert feature_dim(factory("convnet"), shape) == width


def test_convnet_pads_grey_images_by_three_in_the_first_block_only() -> None:
    def paddings(shape: tuple[int, ...]) -> list[Any]:
        modules = backbone("convnet", shape).modules()
        return [layer.padding for layer in modules if isinstance(layer, nn.Conv2d)]

    assert paddings(GREY) == [(3, 3), (1, 1), (1, 1)]
    assert paddings(COLOUR) == [(1, 1)] * 3


def test_resnet_without_norm_in_its_blocks() -> None:
    """The shortcuts of the last three stages stay normalised."""
    network = backbone("resnet18", COLOUR, norm_in_blocks=False)
    names = [name for name, layer in network.named_modules() if isinstance(layer, nn.GroupNorm)]
    assert names == [f"layer{stage}.0.downsample.1" for stage in (2, 3, 4)]
    assert all(network.get_submodule(name).num_groups == 2 for name in names)
    block = network.layer1[0]
    x = torch.rand(2, 64, 8, 8)
    expected = (x + block.conv2(block.conv1(x).clamp(min=0))).clamp(min=0)
    torch.testing.assert_close(block(x), expected)


def test_last_channel_of_mobilenet() -> None:
    """The last convolution has 320 inputs, no bias, and a norm with two numbers a channel."""
    wide, narrow = (
        backbone("mobilenet_v2", COLOUR),
        backbone("mobilenet_v2", COLOUR, last_channel=512),
    )
    assert count(wide) - count(narrow) == (1280 - 512) * (320 + 2)
    z = narrow(torch.randn(4, *COLOUR))
    assert z.shape == (4, 512)
    weight = narrow.features[-1][0].weight
    assert weight.std().item() == pytest.approx((2 / 512) ** 0.5, rel=0.02)  # Kaiming, fan out


@pytest.mark.parametrize("rectify", [True, False])
def test_mlp_features_are_rectified_if_asked(rectify: bool) -> None:
    z = backbone("mlp", (8,), rectify=rectify)(torch.randn(50, 8))
    assert (z >= 0).all() == rectify


def test_mlp_takes_any_shape_and_any_depth() -> None:
    straight = backbone("mlp", (1, 8, 8), hidden=[], feature_dim=2)
    assert count(straight) == 64 * 2 + 2
    deep = backbone("mlp", (2,), hidden=[5, 5, 5, 5], feature_dim=2)
    assert sum(isinstance(module, nn.Linear) for module in deep.modules()) == 5


def test_batch_norm_precedes_the_relu_of_each_hidden_layer() -> None:
    layers = backbone("mlp", (8,), hidden=[5, 6], feature_dim=3, batch_norm=True)[1]
    block = [nn.Linear, nn.BatchNorm1d, nn.ReLU]
    assert [type(layer) for layer in layers] == [*block, *block, nn.Linear, nn.ReLU]
    plain = backbone("mlp", (8,), hidden=[5, 6], feature_dim=3)[1]
    assert [type(layer) for layer in plain] == [nn.Linear, nn.ReLU] * 3


@pytest.mark.parametrize("option", ["resnet10", "resnet18", "mobilenet_v2"])
@pytest.mark.parametrize(("norm", "layer"), [("group", nn.GroupNorm), ("batch", nn.BatchNorm2d)])
def test_norm_is_group_or_batch(option: str, norm: str, layer: type[nn.Module]) -> None:
    modules = list(backbone(option, COLOUR, norm=norm).modules())
    norms = {type(module) for module in modules} & {nn.GroupNorm, nn.BatchNorm2d}
    assert norms == {layer}


@pytest.mark.parametrize("option", ["resnet10", "resnet18"])
def test_group_norm_has_no_buffers(option: str) -> None:
    assert not list(backbone(option, COLOUR).buffers())
    assert list(backbone(option, COLOUR, norm="batch").buffers())


@pytest.mark.parametrize(
    ("option", "stem", "resolution"),
    [
        ("resnet10", "cifar", 32 // 8),
        ("resnet10", "imagenet", 32 // 32),
        ("mobilenet_v2", "cifar", 32 // 16),
        ("mobilenet_v2", "imagenet", 32 // 32),
    ],
)
def test_resolution_of_the_last_convolution(option: str, stem: str, resolution: int) -> None:
    network = backbone(option, COLOUR, stem=stem).eval()
    shapes: list[torch.Size] = []
    last = [module for module in network.modules() if isinstance(module, nn.Conv2d)][-1]
    last.register_forward_hook(lambda module, args, output: shapes.append(output.shape))
    network(torch.rand(1, *COLOUR))
    assert shapes[0][2:] == (resolution, resolution)


@pytest.mark.parametrize("option", sorted(BACKBONES.keys() - {"mlp"}))
def test_grey_images(option: str) -> None:
    shape = (1, 32, 32)
    assert (
        feature_dim(factory(option), shape)
        == backbone(option, shape)(torch.rand(2, *shape)).shape[1]
    )


def test_torchvision_sees_grey_as_three_equal_channels() -> None:
    grey = backbone("torchvision", (1, 32, 32), name="resnet18").eval()
    colour = backbone("torchvision", COLOUR, name="resnet18").eval()
    images = torch.rand(2, 1, 32, 32)
    assert torch.equal(grey(images), colour(torch.cat([images] * 3, dim=1)))


@pytest.mark.parametrize(
    ("name", "width"),
    [
        ("resnet18", 512),
        ("densenet121", 1024),
        ("efficientnet_b0", 1280),
        ("convnext_tiny", 768),
        ("shufflenet_v2_x0_5", 1024),
        ("googlenet", 1024),
        ("vgg11", 4096),
        ("swin_t", 768),
        ("regnet_x_400mf", 400),  # reads its widths out of tensors: not built on meta
    ],
)
def test_any_torchvision_classifier(name: str, width: int) -> None:
    assert feature_dim(factory("torchvision", name=name), COLOUR) == width


def test_auxiliary_classifiers_are_left_out() -> None:
    network = backbone("torchvision", COLOUR, name="googlenet").train()
    assert network(torch.rand(2, *COLOUR)).shape == (2, 1024)


@pytest.mark.parametrize(("option", "input_shape", "overrides"), STATELESS)
def test_second_order_gradients(
    option: str, input_shape: tuple[int, ...], overrides: dict[str, Any]
) -> None:
    """The gradient along g of g/2·g, by autograd twice, against a central difference of g."""
    network = backbone(option, input_shape, **overrides).double()
    weights: list[Tensor] = list(network.parameters())
    inputs = torch.rand(3, *input_shape, dtype=torch.float64)

    def gradient() -> list[Tensor]:
        loss = network(inputs).square().mean()
        return list(torch.autograd.grad(loss, weights, create_graph=True))

    first = gradient()
    direction = [each.detach().clone() for each in first]
    second = torch.autograd.grad(first, weights, grad_outputs=direction)
    # A step so small that no ReLU and no pool switches on the way.
    step = 1e-10 / max(each.abs().max().item() for each in direction)
    largest = max(each.abs().max().item() for each in second)
    shifted = []
    for sign in (1, -2):
        with torch.no_grad():
            torch._foreach_add_(weights, direction, alpha=sign * step)
        shifted.append(gradient())
    for exact, above, below in zip(second, *shifted, strict=True):
        slope = (above.detach() - below.detach()) / (2 * step)
        torch.testing.assert_close(exact, slope, rtol=1e-3, atol=1e-4 * largest)


@pytest.mark.parametrize(("option", "input_shape", "overrides"), STATELESS)
def test_stacked_clients(
    option: str, input_shape: tuple[int, ...], overrides: dict[str, Any]
) -> None:
    build = factory(option, **overrides)
    networks = [build(input_shape=input_shape) for _ in range(3)]
    weights, buffers = stack_module_state(networks)
    inputs = torch.rand(3, 4, *input_shape)
    stacked = vmap(partial(functional_call, networks[0]))((weights, buffers), (inputs,))
    expected = torch.stack([network(x) for network, x in zip(networks, inputs, strict=True)])
    torch.testing.assert_close(stacked, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("option", "overrides", "message"),
    [
        ("resnet10", {"groups": 3}, "model.groups=3: must divide 64"),
        ("mobilenet_v2", {"norm": "group", "groups": 16}, "model.groups=16: must divide 8"),
        (
            "mobilenet_v2",
            {"norm": "group", "groups": 8, "last_channel": 500},
            "model.groups=8: must divide 4",
        ),
        ("resnet10", {"projection": "mlp"}, "model.projection=mlp: needs a width"),
        ("hics_cifar", {"dropout": 1}, "model.dropout=1: should be less than 1"),
        (
            "torchvision",
            {"name": "resnet19"},
            "model.name=resnet19: torchvision has no such classifier; did you mean resnet1",
        ),
        (
            "torchvision",
            {"name": "?"},
            "model.name=?: torchvision has no such classifier; see torchvision.models.list_models",
        ),
        (
            "torchvision",
            {"name": "squeezenet1_0"},
            "model.name=squeezenet1_0: has no linear classifier; use another network",
        ),
        ("mlp", {"feature_dim": 0}, "model.feature_dim=0: should be greater than 0"),
        ("mlp", {"hidden": [0]}, "model.hidden.0=0: should be greater than 0"),
        ("resnet18", {"layers": [2, 2]}, "model.layers=[2, 2]: "),
        ("resnet18", {"norm": "layer"}, "model.norm=layer: should be 'group' or 'batch'"),
    ],
)
def test_wrong_arguments(option: str, overrides: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError) as caught:
        feature_dim(factory(option, **overrides), COLOUR)
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)
