"""``model=timm``: networks of the library by name."""

from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from support.federations import compose, federate
from test_backbones import COLOUR, backbone, factory
from torch import Tensor

from fedexp.errors import InputError
from fedexp.models.shape import feature_dim
from fedexp.runtime.plan import plan

RESNET = {"name": "resnet10t"}


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Tensor]]:
    """A whole network's state dict, with its classifier."""
    path = tmp_path_factory.mktemp("timm") / "resnet10t.pth"
    torch.manual_seed(1)
    network = timm.create_model("resnet10t")
    torch.save(network.state_dict(), path)
    return path, network.state_dict()


def message(**overrides: Any) -> str:
    with pytest.raises(InputError) as caught:
        feature_dim(factory("timm", **overrides), COLOUR)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("shape", [COLOUR, (1, 32, 32), (4, 32, 32)])
def test_any_number_of_channels(shape: tuple[int, ...]) -> None:
    network = backbone("timm", shape, **RESNET)
    assert network.conv1[0].in_channels == shape[0]  # type: ignore[union-attr,index]
    assert network(torch.rand(2, *shape)).shape == (2, 512)
    assert feature_dim(factory("timm", **RESNET), shape) == 512


def test_a_transformer_for_small_images() -> None:
    options = {"img_size": 8, "patch_size": 2, "depth": 1, "embed_dim": 24, "num_heads": 2}
    build = factory("timm", name="vit_tiny_patch16_224", options=options, feature_dim=6)
    assert feature_dim(build, (1, 8, 8)) == 6


@pytest.mark.parametrize(("shape", "options"), [(COLOUR, None), ((1, 32, 32), {"in_chans": 3})])
def test_a_file_of_a_whole_network_gives_its_features(
    saved: tuple[Path, dict[str, Tensor]], shape: tuple[int, ...], options: dict[str, int] | None
) -> None:
    path, state = saved
    reference = timm.create_model("resnet10t")
    reference.load_state_dict(state)
    reference.reset_classifier(0)
    network = backbone("timm", shape, **RESNET, weights=str(path), options=options).eval()
    images = torch.rand(2, *shape)
    torch.testing.assert_close(
        network(images), reference.eval()(images.expand(-1, 3, -1, -1)), rtol=1e-4, atol=1e-5
    )


def test_mistakes(saved: tuple[Path, dict[str, Tensor]], tmp_path: Path) -> None:
    path = saved[0]
    assert message(name="resnet11t").startswith(
        "model.name=resnet11t: timm has no such network; did you mean "
    )
    assert message(name="resnet10t", options={"colour": 1}).startswith(
        "model.name=resnet10t: timm cannot make it ("
    )
    assert message(name="resnet14t", weights=str(path)).startswith(
        f"model.weights={path}: does not fit resnet14t here: "
    )
    absent = tmp_path / "absent.pth"
    assert message(**RESNET, weights=str(absent)) == (
        f"model.weights={absent}: there is no file {absent}; should be null, pretrained or the "
        "path of a state dict"
    )
    with pytest.raises(
        InputError, match=r"model\.init=layer_default: would replace model\.weights"
    ):
        plan(
            compose(
                *("data=cifar10", "model=timm", "model.name=resnet10t"),
                *(f"model.weights={path}", "model.init=layer_default"),
            )
        )


def test_weights_of_timm_are_its_own_business(monkeypatch: pytest.MonkeyPatch) -> None:
    """``pretrained=True`` is asked for once, for the network with data; a failure is one line."""
    asked = []
    create = timm.create_model

    def offline(name: str, pretrained: bool, **options: Any) -> Any:
        asked.append(pretrained)
        if pretrained:
            raise OSError("no network\nand much more")
        return create(name, **options)

    monkeypatch.setattr(timm, "create_model", offline)
    assert feature_dim(factory("timm", **RESNET, weights="pretrained"), COLOUR) == 512
    with pytest.raises(InputError, match=r"^model\.name=resnet10t: .* \(no network\)$"):
        backbone("timm", COLOUR, **RESNET, weights="pretrained")
    assert asked == [False, True]


def test_a_network_that_needs_data_to_be_made(monkeypatch: pytest.MonkeyPatch) -> None:
    create = timm.create_model

    def reads_values(name: str, **options: Any) -> Any:
        if torch.ones(1).is_meta:
            raise RuntimeError("Tensor.item() cannot be called on meta tensors")
        return create(name, **options)

    monkeypatch.setattr(timm, "create_model", reads_values)
    assert feature_dim(factory("timm", **RESNET), COLOUR) == 512


def test_without_timm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "timm", None)
    assert message() == "model=timm: needs timm, which is not installed; pip install 'fedexp[timm]'"


def test_fine_tuning_the_last_stage(saved: tuple[Path, dict[str, Tensor]]) -> None:
    """Layers are found behind the one that repeats grey images."""
    path, state = saved
    federation = federate(
        *["model=timm", "model.name=resnet10t", f"model.weights={path}", "data.subset=40"],
        *["model.options={in_chans: 3}", "model.train=[head,layer4]", "clients.count=2"],
        *["clients.per_round=2", "local.epochs=1", "measure.personal=null", "partition=iid"],
    )
    weights = federation.server.weights
    assert {".".join(name.split(".")[:3]) for name in weights} == {
        "backbone.1.layer4",
        "head.linear.weight",
        "head.linear.bias",
    }
    federation.run_round(1)
    module = federation.module
    for name, value in state.items():
        if not name.startswith("fc."):
            same = torch.equal(module.state_dict()[f"backbone.1.{name}"], value)
            assert same != (f"backbone.1.{name}" in weights), name
