"""Levels of backbones against the maps that hooks see, in torchvision's own networks too."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest
import torch
from test_backbones import backbone
from torch import Tensor, nn
from torch.func import functional_call, stack_module_state, vmap
from torchvision.models import MobileNetV2
from torchvision.models.resnet import BasicBlock, Bottleneck, ResNet

from fedexp.models.levels import HasLevels

SMALL = (3, 8, 8)
# Option, inputs, overrides, widths of the levels.
LEVELLED: list[tuple[str, tuple[int, ...], dict[str, Any], list[int]]] = [
    ("conv2cifar", (3, 16, 16), {}, [64, 64]),
    ("simple_cnn", (1, 20, 20), {}, [6, 16]),
    ("hics_fmnist", (1, 20, 20), {}, [32, 32]),
    ("convnet", SMALL, {"width": 4, "depth": 2}, [4, 4]),
    ("convnet", SMALL, {"width": 4, "depth": 2, "feature_dim": 7, "projection": "mlp"}, [4, 4]),
    ("resnet10", SMALL, {}, [64, 64, 128, 256, 512]),
    ("resnet10", SMALL, {"norm_in_blocks": False}, [64, 64, 128, 256, 512]),
    ("resnet10", SMALL, {"feature_dim": 7}, [64, 64, 128, 256, 512]),
    ("resnet18", SMALL, {}, [64, 64, 128, 256, 512]),
    ("resnet50", SMALL, {"layers": [1, 1, 1, 1]}, [64, 256, 512, 1024, 2048]),
    ("mobilenet_v2", SMALL, {"norm": "group"}, [32, 16, 24, 32, 64]),
]
CASES = pytest.mark.parametrize(("option", "input_shape", "overrides", "widths"), LEVELLED)


def levelled(network: nn.Module) -> HasLevels:
    assert isinstance(network, HasLevels)
    return network


@contextmanager
def inputs_of(modules: list[nn.Module]) -> Iterator[list[Tensor]]:
    """The first inputs of these modules, in the order of the calls."""
    seen: list[Tensor] = []
    hooks = [
        each.register_forward_pre_hook(lambda _, args: seen.append(args[0].clone()))
        for each in modules
    ]
    yield seen
    for hook in hooks:
        hook.remove()


def reference_resnet(network: nn.Module, block: type[Any], layers: list[int]) -> ResNet:
    """torchvision's own network with GroupNorm(2), the 3x3 stem and the weights of ``network``."""
    reference = ResNet(block, layers, norm_layer=partial(nn.GroupNorm, 2))
    reference.conv1 = nn.Conv2d(3, 64, 3, padding=1, bias=False)
    reference.maxpool, reference.fc = nn.Identity(), nn.Identity()
    reference.load_state_dict(network.state_dict())
    return reference


@pytest.mark.parametrize(
    ("option", "block", "layers"),
    [
        ("resnet10", BasicBlock, [1, 1, 1, 1]),
        ("resnet18", BasicBlock, [2, 2, 2, 2]),
        ("resnet50", Bottleneck, [3, 4, 6, 3]),
    ],
)
def test_resnets_are_torchvisions_to_the_bit(
    option: str, block: type[Any], layers: list[int]
) -> None:
    """The weights' names, the features, the gradients; a level enters the last ReLU of a stage."""
    network = backbone(option, SMALL)
    reference = reference_resnet(network, block, layers)
    assert list(network.state_dict()) == list(reference.state_dict())
    images = torch.rand(2, *SMALL)
    stages = [reference.layer1, reference.layer2, reference.layer3, reference.layer4]
    with inputs_of([reference.relu, *(stage[-1].relu for stage in stages)]) as rectified:
        expected = reference(images)
    z = network(images)
    assert torch.equal(z, expected)
    z.square().sum().backward()
    expected.square().sum().backward()
    for own, other in zip(network.parameters(), reference.parameters(), strict=True):
        assert torch.equal(own.grad, other.grad)
    calls = 2 if block is BasicBlock else 3  # of a block's one ReLU
    sums = [rectified[0], *rectified[calls::calls]]
    _, levels = levelled(network).forward_levels(images)
    assert len(levels) == len(sums) == 5
    assert all(torch.equal(a, b.mean(dim=(2, 3))) for a, b in zip(levels, sums, strict=True))


def test_levels_of_mobilenet() -> None:
    """Before the stem's ReLU6, and what enters the first block of the stage after each of four."""
    network = backbone("mobilenet_v2", SMALL, norm="group")
    images = torch.rand(2, *SMALL)
    after = [network.features[number] for number in (2, 4, 7, 11)]
    with inputs_of([network.features[0][2], *after]) as maps:
        MobileNetV2.forward(network, images)
    _, levels = levelled(network).forward_levels(images)
    assert len(levels) == len(maps) == 5
    assert all(torch.equal(a, b.mean(dim=(2, 3))) for a, b in zip(levels, maps, strict=True))


@pytest.mark.parametrize(
    "option", ["conv2cifar", "simple_cnn", "hics_fmnist", "hics_cifar", "convnet"]
)
def test_levels_of_plain_networks_enter_the_relus_of_convolutions(option: str) -> None:
    network = backbone(option, (3, 32, 32)).eval()
    images = torch.rand(2, 3, 32, 32)
    with inputs_of([each for each in network.modules() if isinstance(each, nn.ReLU)]) as rectified:
        network(images)
    maps = [each for each in rectified if each.dim() == 4]
    _, levels = levelled(network).forward_levels(images)
    assert len(levels) == len(maps) >= 2
    assert all(torch.equal(a, b.mean(dim=(2, 3))) for a, b in zip(levels, maps, strict=True))


@CASES
def test_z_is_the_same_with_and_without_levels(
    option: str, input_shape: tuple[int, ...], overrides: dict[str, Any], widths: list[int]
) -> None:
    network = backbone(option, input_shape, **overrides)
    inputs = torch.rand(3, *input_shape)
    z, levels = levelled(network).forward_levels(inputs)
    assert torch.equal(z, network(inputs))
    assert [each.shape for each in levels] == [(3, width) for width in widths]


class WithLevels(nn.Module):
    def __init__(self, backbone: nn.Module) -> None:
        super().__init__()
        self.backbone = backbone

    def forward(self, inputs: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
        return levelled(self.backbone).forward_levels(inputs)


@CASES
def test_levels_of_stacked_clients(
    option: str, input_shape: tuple[int, ...], overrides: dict[str, Any], widths: list[int]
) -> None:
    networks = [WithLevels(backbone(option, input_shape, **overrides)) for _ in range(2)]
    with torch.no_grad():
        for weight in networks[1].parameters():
            weight.mul_(1.1)
    inputs = torch.rand(2, 3, *input_shape)
    states = stack_module_state(networks)
    z, levels = vmap(partial(functional_call, networks[0]))(states, (inputs,))
    for row, network in enumerate(networks):
        expected, expected_levels = network(inputs[row])
        torch.testing.assert_close(z[row], expected, rtol=1e-4, atol=1e-5)
        for found, each in zip(levels, expected_levels, strict=True):
            torch.testing.assert_close(found[row], each, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("option", ["mlp", "hics_fmnist", "torchvision"])
def test_other_networks_have_none(option: str) -> None:
    overrides: dict[str, Any] = {"mlp": {}, "hics_fmnist": {"blocks": "prelu_batchnorm"}}.get(
        option, {"feature_dim": 7}
    )
    assert not isinstance(backbone(option, (3, 32, 32), **overrides), HasLevels)
