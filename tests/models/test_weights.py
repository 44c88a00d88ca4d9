"""Weights from a state-dict file: what is copied, what is not, and what is refused."""

from pathlib import Path
from typing import Any

import pytest
import torch
from support.federations import federate
from test_backbones import COLOUR, backbone, factory
from torch import Tensor, nn
from torchvision import models

import fedexp
from fedexp.errors import InputError
from fedexp.models.shape import feature_dim

ONE_ROUND = ["algorithm=fedavg", "model.hidden=[8]", "rounds=1", "data.subset=200"]
MOBILENET = {"stem": "imagenet", "norm": "batch"}
SHUFFLENET = {"name": "shufflenet_v2_x0_5"}


def save(network: nn.Module, path: Path) -> dict[str, Tensor]:
    torch.manual_seed(1)
    for value in network.state_dict().values():
        if value.is_floating_point():
            value.copy_(torch.rand(value.shape))
    torch.save(network.state_dict(), path)
    return network.state_dict()


@pytest.fixture(scope="module")
def mobilenet(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Tensor]]:
    path = tmp_path_factory.mktemp("weights") / "mobilenet.pth"
    return path, save(models.mobilenet_v2(), path)


@pytest.fixture(scope="module")
def shufflenet(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Tensor]]:
    path = tmp_path_factory.mktemp("weights") / "shufflenet.pth"
    return path, save(models.shufflenet_v2_x0_5(), path)


@pytest.mark.parametrize("stem", ["imagenet", "cifar"])
def test_mobilenet_keeps_its_narrow_last_convolution(
    mobilenet: tuple[Path, dict[str, Tensor]], stem: str
) -> None:
    path, saved = mobilenet
    options: dict[str, Any] = MOBILENET | {"stem": stem, "last_channel": 512}
    given = backbone("mobilenet_v2", COLOUR, **options, weights=str(path)).state_dict()
    drawn = backbone("mobilenet_v2", COLOUR, **options).state_dict()
    assert given.keys() == drawn.keys()
    for name, value in given.items():
        kept = name.startswith("features.18.")
        assert torch.equal(value, (drawn if kept else saved)[name]), name


def test_mobilenet_takes_the_whole_trunk(mobilenet: tuple[Path, dict[str, Tensor]]) -> None:
    path, saved = mobilenet
    given = backbone("mobilenet_v2", COLOUR, **MOBILENET, weights=str(path)).state_dict()
    assert {name.partition(".")[0] for name in saved.keys() - given.keys()} == {"classifier"}
    assert all(torch.equal(value, saved[name]) for name, value in given.items())


@pytest.mark.parametrize("shape", [COLOUR, (1, 32, 32)])
def test_a_torchvision_network_gives_the_features_of_the_saved_one(
    shufflenet: tuple[Path, dict[str, Tensor]], shape: tuple[int, ...]
) -> None:
    path, saved = shufflenet
    reference = models.shufflenet_v2_x0_5()
    reference.load_state_dict(saved)
    reference.fc = nn.Identity()
    network = backbone("torchvision", shape, **SHUFFLENET, weights=str(path)).eval()
    images = torch.rand(2, *shape)
    expected = reference.eval()(images.expand(-1, 3, -1, -1))
    torch.testing.assert_close(network(images), expected)
    assert feature_dim(factory("torchvision", **SHUFFLENET, weights=str(path)), shape) == 1024


def test_a_projection_after_it_is_random(shufflenet: tuple[Path, dict[str, Tensor]]) -> None:
    path, saved = shufflenet
    options = SHUFFLENET | {"feature_dim": 84, "projection": "mlp"}
    network = backbone("torchvision", COLOUR, **options, weights=str(path))
    drawn = backbone("torchvision", COLOUR, **options)
    for (name, value), other in zip(
        network.state_dict().items(), drawn.state_dict().values(), strict=True
    ):
        source = saved.get(name.removeprefix("0."), other) if name.startswith("0.") else other
        assert torch.equal(value, source), name


def test_files_from_before_batches_were_counted(
    shufflenet: tuple[Path, dict[str, Tensor]], tmp_path: Path
) -> None:
    _, saved = shufflenet
    path = tmp_path / "old.pth"
    torch.save({n: v for n, v in saved.items() if not n.endswith("num_batches_tracked")}, path)
    network = backbone("torchvision", COLOUR, **SHUFFLENET, weights=str(path))
    assert torch.equal(network.state_dict()["conv1.1.running_var"], saved["conv1.1.running_var"])


def test_auxiliary_classifiers_in_a_file_are_left_out(tmp_path: Path) -> None:
    path = tmp_path / "googlenet.pth"
    torch.save(models.googlenet(aux_logits=True, init_weights=False).state_dict(), path)
    assert feature_dim(factory("torchvision", name="googlenet", weights=str(path)), COLOUR) == 1024


def message(option: str, shape: tuple[int, ...] = COLOUR, **overrides: Any) -> str:
    with pytest.raises(InputError) as caught:
        feature_dim(factory(option, **overrides), shape)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_file_that_does_not_fit_names_the_tensor_and_both_shapes(
    mobilenet: tuple[Path, dict[str, Tensor]], shufflenet: tuple[Path, dict[str, Tensor]]
) -> None:
    path, other = mobilenet[0], shufflenet[0]
    start = f"model.weights={path}: does not fit mobilenet_v2 here: features.0.0.weight is "
    found = message("mobilenet_v2", (1, 32, 32), **MOBILENET, weights=str(path))
    assert found == start + f"[32, 3, 3, 3] in {path}, [32, 1, 3, 3] in the model"
    found = message("mobilenet_v2", norm="group", weights=str(path))
    assert "features.0.1.running_mean is [32] in" in found
    assert found.endswith("absent in the model")
    found = message("mobilenet_v2", **MOBILENET, weights=str(other))
    assert "conv1.0.weight is [24, 3, 3, 3] in" in found
    assert found.endswith("absent in the model")


def test_other_files(tmp_path: Path) -> None:
    absent = tmp_path / "absent.pth"
    found = message("efficientnet_b0", weights=str(absent))
    assert found == (
        f"model.weights={absent}: there is no file {absent}; should be null, imagenet or the path "
        "of a state dict"
    )
    noise = tmp_path / "noise.pth"
    for content in (b"not a state dict", b"hello", b"the text", b"\x80\x04junk"):
        noise.write_bytes(content)
        found = message("efficientnet_b0", weights=str(noise))
        assert found.startswith(f"model.weights={noise}: {noise}: cannot be read (it is damaged")
        assert "weights_only" not in found
    noise.write_bytes(b"")
    assert "cannot be read (it is empty)" in message("efficientnet_b0", weights=str(noise))
    torch.save([torch.ones(1)], noise)
    assert "is not a state dict (names and" in message("efficientnet_b0", weights=str(noise))
    torch.save({"code": Path}, noise)
    assert "holds other things than tensors" in message("efficientnet_b0", weights=str(noise))
    network = models.shufflenet_v2_x0_5()
    network.conv1[0].weight.data.fill_(torch.nan)
    torch.save(network.state_dict(), noise)
    assert message("torchvision", **SHUFFLENET, weights=str(noise)).startswith(
        f"model.weights={noise}: {noise}: conv1.0.weight holds NaN or Inf"
    )
    numbered = tmp_path / "numbered.pth"
    torch.save({0: torch.zeros(1)}, numbered)
    assert "is not a state dict" in message("efficientnet_b0", weights=str(numbered))
    wrapped = tmp_path / "wrapped.pth"
    torch.save({"state_dict": {}}, wrapped)
    assert "is not a state dict (names and tensors" in message(
        "efficientnet_b0", weights=str(wrapped)
    )


def test_imagenet_is_torchvisions_file_in_its_cache(
    shufflenet: tuple[Path, dict[str, Tensor]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, saved = shufflenet
    monkeypatch.setattr(torch.hub, "get_dir", lambda: str(tmp_path))
    url = models.ShuffleNet_V2_X0_5_Weights.DEFAULT.url
    file = tmp_path / "checkpoints" / url.rpartition("/")[2]

    def offline(*args: Any, **kwargs: Any) -> None:
        raise OSError("no network")

    monkeypatch.setattr(torch.hub, "download_url_to_file", offline)
    found = message("torchvision", **SHUFFLENET, weights="imagenet")
    assert found == (
        f"model.weights=imagenet: {file} is missing, and {url} cannot be downloaded (no network);"
        " put the file there, or set model.weights to its path"
    )
    torch.save(saved, file)
    network = backbone("torchvision", COLOUR, **SHUFFLENET, weights="imagenet")
    assert torch.equal(network.state_dict()["conv1.0.weight"], saved["conv1.0.weight"])


def test_initial_weights_do_not_replace_given_ones(
    shufflenet: tuple[Path, dict[str, Tensor]],
) -> None:
    path, saved = shufflenet
    overrides = ["model=torchvision", "model.name=shufflenet_v2_x0_5", f"model.weights={path}"]
    overrides += ["data.subset=200", "local.batch_size=32"]
    initial = federate(*overrides).engine.resources.initial
    name = "conv1.0.weight"
    assert torch.equal(initial[f"backbone.1.{name}"], saved[name])  # after the repeated channel
    with pytest.raises(InputError, match=r"model.init=layer_default: would replace model.weights="):
        federate(*overrides, "model.init=layer_default")


@pytest.mark.matrix
@pytest.mark.parametrize("lora", [[], ["model.lora.rank=3"]])
def test_a_run_starts_from_the_backbone_of_another(tmp_path: Path, lora: list[str]) -> None:
    first = fedexp.run([*ONE_ROUND, "tracking.wandb.mode=disabled", f"hydra.run.dir={tmp_path}"])
    given = f"model.start_from={tmp_path / 'checkpoints' / 'final.pt'}"
    module = federate(*ONE_ROUND, given, *lora).module
    images = torch.rand(2, 1, 8, 8)
    torch.testing.assert_close(module.backbone(images), first.model.backbone(images))
    fresh = federate(*ONE_ROUND, *lora).module
    assert torch.equal(module.head.linear.weight, fresh.head.linear.weight)  # type: ignore[union-attr,arg-type]


@pytest.mark.parametrize(
    ("hidden", "line"),
    [
        (
            "[16]",
            r"does not fit the backbone here: 1\.0\.bias is \[16\] in .*, \[8\] in the model$",
        ),
        (None, r"there is no file .*; should be null or the path of a state dict$"),
    ],
)
def test_the_backbone_s_file_does_not_fit(tmp_path: Path, hidden: str | None, line: str) -> None:
    path = tmp_path / "backbone.pt"
    if hidden:
        other = federate(*ONE_ROUND, f"model.hidden={hidden}").module.backbone
        torch.save(other.state_dict(), path)
    with pytest.raises(InputError, match=rf"^model\.start_from=.*: {line}"):
        federate(*ONE_ROUND, f"model.start_from={path}")
