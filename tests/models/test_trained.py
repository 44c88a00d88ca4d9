"""``model.train``: what does not train stays as it is, is not sent and is not counted."""

from pathlib import Path

import pytest
import torch
from support.federations import assert_alike, compose, federate
from support.refusals import refused
from support.resumed_runs import check_resumes_to_the_bit
from torch import nn
from torch.optim import Optimizer

import fedexp
from fedexp.core.client import ClientModule
from fedexp.errors import InputError
from fedexp.models.trained import train_head, train_layers
from fedexp.runtime.plan import plan
from fedexp.state.files import load_tensors
from fedexp.state.run_folder import FINAL, saved_weights

SMALL = ["clients.count=4", "clients.per_round=2", "local.epochs=1", "data.subset=200"]
LAST = "model.train=[head,backbone.1.2]"  # of 64-128-64
RESNET = ["model=resnet10", "model.norm=batch", "clients.count=2", "data.subset=20"]


def network() -> nn.Module:
    block = nn.Sequential()
    block.add_module("conv1", nn.Conv2d(2, 2, 1))
    found = nn.Module()
    for name, layer in {
        "conv1": nn.Conv2d(1, 2, 1),
        "layer1": block,
        "layer10": nn.Linear(2, 2),
        "head": nn.Linear(2, 3),
    }.items():
        found.add_module(name, layer)
    return found


def trained(module: nn.Module) -> set[str]:
    return {name for name, value in module.named_parameters() if value.requires_grad}


def below(*paths: str) -> set[str]:
    return {f"{path}.{kind}" for path in paths for kind in ("weight", "bias")}


@pytest.mark.parametrize(
    ("paths", "expected"),
    [
        (["conv1"], below("conv1")),  # not that of the block
        (["layer1"], below("layer1.conv1")),  # not layer10
        (["layer1.conv1", "layer10.bias"], below("layer1.conv1") | {"layer10.bias"}),
        (["backbone.head"], below("head")),  # the backbone's own layer of this name
        (["backbone"], below("conv1", "layer1.conv1", "layer10", "head")),
        ([], set()),
    ],
)
@pytest.mark.parametrize("depth", [0, 1, 2])
def test_paths_are_found_at_the_outermost_level(
    paths: list[str], expected: set[str], depth: int
) -> None:
    model, prefix = network(), ""
    for _ in range(depth):  # as behind a layer that makes grey images colour
        model, prefix = nn.Sequential(nn.Identity(), model), f"1.{prefix}"
    if any(path.startswith("backbone.") for path in paths) and depth:
        paths = [path.replace("backbone.", f"backbone.{prefix}") for path in paths]
    train_layers(model, paths)
    assert trained(model) == {prefix + name for name in expected}


def test_paths_of_the_head() -> None:
    head = nn.Linear(2, 3)
    train_head(head, ["head.bias"])
    assert trained(head) == {"bias"}
    train_head(head, ["head"])
    assert trained(head) == {"weight", "bias"}
    train_head(head, [])
    assert trained(head) == set()


@pytest.mark.parametrize(
    ("train", "message"),
    [
        ("[layer5]", r"no parameter below layer5; did you mean .*layer4"),
        ("[layer]", r"no parameter below layer; did you mean"),
        ("[head,decoder]", r"no parameter below decoder; there are head, conv1, bn1, layer1, "),
        (
            "[head.scale]",
            r"no parameter below head\.scale; there are head, head\.weight, head\.bias$",
        ),
        ("[]", r"model\.train"),
    ],
)
def test_mistyped_layers(train: str, message: str) -> None:
    with refused(message):
        plan(compose("model=resnet10", f"model.train={train}"))


def test_the_final_weights_hold_what_does_not_train(tmp_path: Path) -> None:
    options = [*SMALL, LAST, "rounds=1", "tracking.wandb.mode=disabled", "algorithm=fedavg"]
    result = fedexp.run([*options, f"hydra.run.dir={tmp_path / 'run'}"])
    saved = load_tensors(saved_weights(tmp_path / "run", FINAL))
    module = federate(*SMALL, LAST).module
    assert saved.keys() == module.state_dict().keys()
    assert torch.equal(saved["backbone.1.0.weight"], module.state_dict()["backbone.1.0.weight"])
    for name, value in result.model.weights.items():
        assert torch.equal(saved[name], value)


@pytest.mark.parametrize("engine", ["serial", "vectorized", "trainer"])
def test_only_what_trains_is_optimised_sent_and_counted(
    engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[int] = []
    make = ClientModule.optimizer_for

    def recorded(self: ClientModule, parameters: object) -> Optimizer:
        given = list(parameters)  # type: ignore[call-overload]
        stacked = 2 if engine == "vectorized" else 1
        sizes.append(sum(each.numel() for each in given) // stacked)
        return make(self, given)

    monkeypatch.setattr(ClientModule, "optimizer_for", recorded)
    federation = federate(*SMALL, LAST, f"engine={engine}")
    module = federation.module
    first = {n: w.clone() for n, w in module.named_parameters()}
    record = federation.run_round(1)
    names = {"backbone.1.2.weight", "backbone.1.2.bias"}
    names |= {"head.linear.weight", "head.linear.bias"}
    assert federation.server.weights.keys() == names
    count = 128 * 64 + 64 + 64 * 10 + 10
    assert set(sizes) == {count}
    assert record.metrics["cost/upload_bytes"] == record.metrics["cost/download_bytes"]
    assert record.metrics["cost/upload_bytes"] == 2 * 4 * count
    assert record.metrics["cost/stored_parameters"] == count + 64 * 128 + 128
    for name, value in module.named_parameters():
        assert (name in names) != torch.equal(value, first[name]), name


def test_all_layers_by_name_is_the_default_to_the_bit() -> None:
    default, named = federate(*SMALL), federate(*SMALL, "model.train=[head,backbone]")
    for round in (1, 2):
        default.run_round(round), named.run_round(round)
    assert default.server.weights.keys() == named.server.weights.keys()
    for name, value in default.server.weights.items():
        assert torch.equal(value, named.server.weights[name])


METHODS = ["fednh", "fedsc", "fedgela", "fedrep", "ditto", "scaffold", "moon", "feddyn", "fedproto"]


@pytest.mark.matrix
@pytest.mark.parametrize("algorithm", METHODS)
def test_methods_in_both_engines(algorithm: str) -> None:
    train = "model.train=[backbone.1.2]" if algorithm in ("fedgela", "fednh") else LAST
    options = [*SMALL, train, f"algorithm={algorithm}", "optimizer.lr=0.001"]
    assert_alike(federate(*options), federate(*options, "engine=vectorized"), rounds=2)


def test_batchnorm_that_does_not_train_keeps_its_statistics_and_can_be_stacked() -> None:
    options = [*SMALL, *RESNET, "model.train=[head]", "head=cosine"]
    serial, vectorized = federate(*options), federate(*options, "engine=vectorized")
    for federation in (serial, vectorized):
        before = {n: b.clone() for n, b in federation.module.named_buffers()}
        federation.run_round(1)
        assert federation.server.weights.keys() == {"head.weight", "head.scale"}
        for name, buffer in federation.module.named_buffers():
            assert torch.equal(buffer, before[name]), name
    torch.testing.assert_close(serial.server.weights, vectorized.server.weights)


def test_batchnorm_of_a_layer_that_trains_is_sent() -> None:
    federation = federate(*SMALL, *RESNET, "model.train=[head,layer4]")
    buffers = {name for name in federation.server.weights if "running" in name}
    assert buffers
    assert all(name.startswith("backbone.layer4.") for name in buffers)
    before = {name: federation.server.weights[name].clone() for name in buffers}
    federation.run_round(1)
    assert all((federation.server.weights[name] != before[name]).any() for name in buffers)
    with pytest.raises(InputError, match=r"engine=vectorized: backbone\.layer4.* is BatchNorm"):
        federate(*SMALL, *RESNET, "model.train=[head,layer4]", "engine=vectorized")


def test_a_network_may_freeze_layers_itself() -> None:
    federation = federate(*SMALL, "model=custom", "model._target_=support.own_networks.Normalised")
    names = federation.server.weights.keys()
    assert not any("conv1" in name or "bn1" in name for name in names)
    assert "backbone.block.1.running_mean" in names


@pytest.mark.parametrize("train", ["[backbone.1.2]", "[head]"])
@pytest.mark.parametrize("personalization", ["fedbabu", "fedrep"])
def test_a_phase_with_nothing_to_train(train: str, personalization: str) -> None:
    overrides = [f"model.train={train}", f"personalization={personalization}"]
    if (train, personalization) == ("[backbone.1.2]", "fedbabu"):
        plan(compose(*overrides))
        return
    with pytest.raises(InputError, match=r"no parameter of the backbone to train|trains nothing"):
        plan(compose(*overrides))


@pytest.mark.parametrize("method", ["pfl_da", "fedper", "fedgh", "fedah"])
def test_a_head_that_model_train_leaves_out_is_named_with_the_key(method: str) -> None:
    line = r"^model\.train leaves out the head \(head=linear\), which then .*; add head to model"
    with pytest.raises(InputError, match=line):
        plan(compose(f"algorithm={method}", "model.train=[backbone]"))


@pytest.mark.parametrize("head", ["calibrated", "corrected", "simplex", "spread_out"])
def test_a_head_that_clients_must_train_is_named_with_the_key(head: str) -> None:
    line = "^model.train leaves out the head, which clients must train; add head to model.train$"
    with pytest.raises(InputError, match=line):
        plan(compose("algorithm=fedavg", f"head={head}", "model.train=[backbone]"))


def test_a_small_last_batch_is_no_matter_for_batchnorm_that_does_not_train(
    image_tree: Path,
) -> None:
    images = ["data=image_folder", f"data.root={image_tree}", "data.subset=6", "partition=iid"]
    single = [*images, "clients.count=2", "clients.per_round=1", "local.batch_size=2"]
    federate(*single, "model=torchvision", "model.train=[head]").run_round(1)


@pytest.mark.matrix
@pytest.mark.parametrize("engine", ["serial", "vectorized"])
def test_resumes_to_the_bit(engine: str, tmp_path: Path) -> None:
    check_resumes_to_the_bit(tmp_path, LAST, f"engine={engine}", "algorithm=fedper")
