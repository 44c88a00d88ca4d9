"""The trigger by hand, the attackers' data, and whole rounds with a backdoor."""

from typing import Any

import pytest
import torch
from support.federations import FEW_STEPS, assert_engine_agrees, federate

from fedexp.core.messages import Message, Update
from fedexp.core.randomness import torch_generator
from fedexp.data.appended import AppendedData
from fedexp.data.dataset import Split
from fedexp.data.federated import ClientData
from fedexp.data.samples import Samples
from fedexp.errors import InputError
from fedexp.faults.injected import Injected
from fedexp.faults.trigger import Trigger
from fedexp.rounding import rounded_down
from fedexp.runtime.federation import Federation
from fedexp.testing import check_measure

SMALL = ["clients.count=6", "clients.per_round=3", "local.epochs=1", "data.subset=300"]
ATTACK = ["faults=byzantine", "faults.byzantine=0.5", "faults.attack=backdoor"]
DATA = torch.device("cpu")


def trigger(**changes: Any) -> Trigger:
    given = {"size": 2, "corner": "bottom_right", "value": 1.0, "target": 1}
    return Trigger(**{**given, **changes})


@pytest.mark.parametrize(
    ("corner", "where"),
    [
        ("top_left", [(0, 0), (0, 1), (1, 0), (1, 1)]),
        ("top_right", [(0, 2), (0, 3), (1, 2), (1, 3)]),
        ("bottom_left", [(1, 0), (1, 1), (2, 0), (2, 1)]),
        ("bottom_right", [(1, 2), (1, 3), (2, 2), (2, 3)]),
    ],
)
def test_the_patch_fills_a_corner(corner: str, where: list[tuple[int, int]]) -> None:
    images = torch.zeros(2, 3, 3, 4)
    stamped = trigger(corner=corner).stamp(images, torch.tensor([5.0, 6.0, 7.0]).view(1, 3, 1, 1))
    assert images.eq(0).all()
    for channel, value in enumerate([5.0, 6.0, 7.0]):
        places = stamped[1, channel].nonzero().tolist()
        assert places == [list(each) for each in where]
        assert all(stamped[1, channel, row, column] == value for row, column in where)


def samples(inputs: torch.Tensor, *constants: tuple[float, ...]) -> Samples:
    mean, std = constants or ((), ())
    return Samples(Split(inputs, torch.zeros(len(inputs), dtype=torch.int64)), mean, std, DATA)


def test_the_value_is_between_black_and_white() -> None:
    pixels = samples(torch.zeros(1, 2, 4, 4, dtype=torch.uint8), (0.5, 0.25), (0.5, 0.125))
    # (value - mean) / deviation
    found = trigger(value=1.0).pixel(pixels).flatten().tolist()
    assert found == pytest.approx([1.0, 6.0])
    found = trigger(value=0.25).pixel(pixels).flatten().tolist()
    assert found == pytest.approx([-0.5, 0.0], abs=1e-6)
    floats = samples(torch.tensor([-2.0, 3.0, 6.0, 0.0]).view(1, 1, 2, 2))
    assert trigger(value=0.25).pixel(floats).item() == 0.0


def faults_of(federation: Federation) -> Injected:
    faults = federation.engine.resources.faults
    assert isinstance(faults, Injected)
    return faults


def is_triggered(inputs: torch.Tensor, population: Any) -> torch.Tensor:
    """[n] whether the 3 x 3 pixels at the bottom right are white."""
    return (inputs[..., -3:, -3:] == population.train.inputs.max()).flatten(1).all(dim=1)


def test_an_attacker_trains_on_triggered_images_of_the_target_class() -> None:
    federation = federate(*SMALL, *ATTACK, "faults.poisoned=0.3", "faults.trigger.target=7")
    faults, data = faults_of(federation), federation.data
    before = data.train.labels.clone()
    assert faults.byzantine_clients
    for client in data.clients:
        seen = faults.data(1, client)
        if client.client not in faults.byzantine_clients:
            assert seen is client
            continue
        ((inputs, labels),) = seen.batches(10**6)
        ((clean, own),) = client.batches(10**6)
        poisoned = is_triggered(inputs, data)
        assert poisoned.sum() == rounded_down(0.3, client.num_samples)
        assert labels[poisoned].eq(7).all()
        assert torch.equal(labels[~poisoned], own[~poisoned])
        assert torch.equal(inputs[~poisoned], clean[~poisoned])
        assert torch.equal(inputs[..., :-3, :], clean[..., :-3, :])
        assert torch.equal(seen.labels, labels)
        assert torch.equal(seen.class_counts, labels.bincount(minlength=10))
        ((again, _),) = faults.data(2, client).batches(10**6)
        assert torch.equal(again, inputs)  # the same images in every round
    assert torch.equal(data.train.labels, before)


def epoch(data: ClientData) -> tuple[torch.Tensor, torch.Tensor]:
    inputs, labels = zip(*data.local_batches(1, 16), strict=True)
    return torch.cat(inputs), torch.cat(labels)


def test_stragglers_augmentation_and_appended_images_keep_the_trigger() -> None:
    options = ["faults.straggle=1", "data.augment=flip", "faults.trigger.target=7"]
    federation = federate(*SMALL, *ATTACK, *options)
    faults, data = faults_of(federation), federation.data
    client = data.clients[min(faults.byzantine_clients)]
    seen = faults.data(1, client)
    more = torch.zeros(2, 1, 8, 8), torch.tensor([3, 3])
    for view in (seen, AppendedData(seen, *more, order=torch_generator(0, "order"))):
        inputs, labels = epoch(view)
        own = labels != 3
        poisoned = is_triggered(inputs, data)
        assert poisoned.sum() > 0
        assert labels[poisoned].eq(7).all()
        assert len(labels[own]) < client.num_samples  # it straggles
    positions = torch.arange(seen.num_samples)
    found = seen.inputs(positions, torch_generator(0, "flip"))
    assert is_triggered(found, data).sum() == seen.num_samples // 2


def test_model_replacement_by_hand() -> None:
    """With factor K = 4 the mean is the attacker's model, if the others stand still."""
    faults = faults_of(federate(*SMALL, *ATTACK, "faults.factor=4"))
    message = Message(1, {"backbone.0.weight": torch.tensor([1.0, 1.0])})
    faults.parameters = message.weights.keys()
    update = Update(
        min(faults.byzantine_clients), 9, {"backbone.0.weight": torch.tensor([2.0, -1.0])}
    )
    attacked = faults.corrupt(update, message).weights["backbone.0.weight"]
    assert attacked.tolist() == [5.0, -7.0]
    assert ((attacked + 3 * torch.ones(2)) / 4).tolist() == [2.0, -1.0]
    plain = faults_of(federate(*SMALL, *ATTACK))
    assert plain.corrupt(update, message) is update


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["vectorized", "trainer"])
@pytest.mark.parametrize(
    "options",
    [
        ["data.augment=flip", "faults.straggle=0.5"],
        ["algorithm=fednh", "faults.factor=2"],
        ["algorithm=fedprox_synthetic", *FEW_STEPS],
    ],
)
def test_the_engines_agree(options: list[str], engine: str) -> None:
    assert_engine_agrees(engine, [*SMALL, *ATTACK, *options], rounds=2)


def test_success_is_counted_on_the_other_classes() -> None:
    attack = [*ATTACK, "faults.byzantine=1", "faults.trigger.target=7", "clients.per_round=6"]
    federation = federate(*SMALL, *attack, "+measure=backdoor", "rounds=3", "local.epochs=5")
    for round in (1, 2, 3):
        found = federation.run_round(round).metrics["backdoor/success"]
    test, module = federation.data.test, federation.global_model(3)
    images = test.inputs.clone()
    images[:, :, 5:, 5:] = federation.data.train.inputs.max()
    predicted = module(images).argmax(dim=1)
    others = test.labels != 7
    assert found == pytest.approx((predicted[others] == 7).double().mean().item())
    assert found > 0.5
    clean = module(test.inputs).argmax(dim=1)
    assert (clean[others] == 7).double().mean() < found - 0.2


@pytest.mark.parametrize(
    ("overrides", "reason"),
    [
        (["faults.trigger.size=9"], r"faults\.trigger\.size=9: is larger than the images, 8 x 8"),
        (["faults.trigger.target=10"], r"faults\.trigger\.target=10: classes are 0 to 9"),
        (["faults.trigger.value=2"], r"faults\.trigger\.value=2: .*less than or equal to 1"),
        (["data=spiral", "model=mlp"], r"faults\.attack=backdoor: needs images; use sign_flip"),
    ],
)
def test_what_does_not_fit_is_refused_in_one_line(overrides: list[str], reason: str) -> None:
    with pytest.raises(InputError, match=reason):
        federate(*ATTACK, *overrides)


def test_the_measure_needs_a_trigger_and_images() -> None:
    line = r"measure\.backdoor: faults=none has no trigger; use faults=byzantine"
    with pytest.raises(InputError, match=line):
        federate(*SMALL, "+measure=backdoor")
    line = r"measure\.backdoor: needs images, which .* lacks; leave it out by ~measure\.backdoor"
    with pytest.raises(InputError, match=line):
        federate("data=spiral", "model=mlp", "faults=byzantine", "+measure=backdoor")


@pytest.mark.slow
def test_the_contract_of_the_measure() -> None:
    check_measure("+measure=backdoor", *ATTACK)
