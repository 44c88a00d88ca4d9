"""Feature shift: the transformations by hand, who sees which, and what FedBN gains."""

from dataclasses import replace
from statistics import mean

import numpy as np
import pytest
import torch
from support.federations import federate, load
from torch import Tensor

from fedexp.core.description import Description
from fedexp.core.randomness import torch_generator
from fedexp.data.dataset import Dataset, Split
from fedexp.data.feature_shift import Kind, Shift, blurred, draw, rotated, shifted
from fedexp.errors import InputError

KINDS: list[Kind] = ["rotation", "colour", "blur"]
FIRST, SECOND = np.array([0, 2]), np.array([1, 3])
BODY = ["model=custom", "model._target_=support.shifted_bodies.small_cnn"]


def images(*shape: int) -> Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(0))


def twins(dtype: torch.dtype = torch.float32) -> Dataset:
    """Every training and test sample is the same image."""
    image = images(1, 3, 6, 6)
    inputs = (255 * image).to(torch.uint8) if dtype == torch.uint8 else image
    split = Split(inputs.repeat(6, 1, 1, 1), torch.tensor([0, 1, 0, 1, 0, 1]))
    return Dataset(Description("twins", (3, 6, 6), ("a", "b")), split, split)


@pytest.mark.parametrize("turns", [-1, 1, 2, 4])
def test_a_quarter_turn_moves_pixels(turns: int) -> None:
    square = images(2, 3, 5, 5)
    expected = torch.rot90(square, turns, dims=(2, 3))
    torch.testing.assert_close(rotated(square, 90 * turns), expected, atol=1e-5, rtol=0)


def test_half_a_turn_of_a_rectangle() -> None:
    wide = images(2, 1, 4, 6)
    torch.testing.assert_close(rotated(wide, 180), wide.flip(2, 3), atol=1e-5, rtol=0)


def test_a_turned_rectangle_is_not_distorted() -> None:
    """A cross in the middle of a 5x9 image stays a cross after a quarter turn."""
    cross = torch.zeros(1, 1, 5, 9)
    cross[..., 2, 3:6] = cross[..., 1:4, 4] = 1
    torch.testing.assert_close(rotated(cross, 90), cross, atol=1e-5, rtol=0)


def test_corners_from_outside_are_black() -> None:
    turned = rotated(torch.ones(1, 1, 8, 8), 45)
    assert turned[0, 0, 0, 0] == 0
    assert turned[0, 0, 4, 4] == 1


def test_blur_by_hand() -> None:
    point = torch.zeros(1, 2, 9, 9)
    point[0, 0, 4, 4] = 1
    found = blurred(point, 1.0)
    line = torch.exp(-0.5 * torch.arange(-3.0, 4) ** 2)
    line = line / line.sum()
    torch.testing.assert_close(found[0, 0, 1:8, 1:8], line[:, None] * line)
    assert not found[0, 1].any()
    torch.testing.assert_close(blurred(torch.full((1, 1, 3, 3), 0.7), 2.0).mean().item(), 0.7)


def test_contrast_and_brightness_by_hand() -> None:
    shift = Shift(0.0, torch.tensor([2.0, 0.5]), torch.tensor([0.1, -0.1]), 0.0)
    found = shift(torch.tensor([0.5, 0.6, 1.0]).expand(1, 2, 1, 3))
    torch.testing.assert_close(found[0, 0, 0], torch.tensor([0.6, 0.8, 1.0]))  # 1.6 is clamped
    torch.testing.assert_close(found[0, 1, 0], torch.tensor([0.4, 0.45, 0.65]))


def test_a_grey_image_has_one_contrast_and_a_coloured_one_three() -> None:
    grey, coloured = (draw(["colour"], 1, (c, 8, 8), torch_generator(0, "test")) for c in (1, 3))
    assert len(grey.contrast) == 1
    assert len(set(coloured.contrast.tolist())) == 3


@pytest.mark.parametrize("kind", KINDS)
def test_a_kind_changes_nothing_else(kind: Kind) -> None:
    alone, all_kinds = (
        draw(kinds, 0.5, (3, 8, 8), torch_generator(0, "test")) for kinds in ([kind], KINDS)
    )
    assert (alone.degrees != 0) == (kind == "rotation")
    assert (alone.sigma != 0) == (kind == "blur")
    assert bool((alone.contrast != 1).all()) == bool(alone.brightness.all()) == (kind == "colour")
    of_kind = {"rotation": "degrees", "colour": "contrast", "blur": "sigma"}[kind]
    one, other = (torch.as_tensor(getattr(each, of_kind)) for each in (alone, all_kinds))
    assert torch.equal(one, other)


def test_strength_is_the_largest_shift() -> None:
    shifts = [draw(KINDS, 0.5, (3, 16, 8), torch_generator(0, "test", k)) for k in range(300)]
    assert 85 < max(abs(each.degrees) for each in shifts) <= 90
    assert 1.9 < max(each.contrast.max().item() for each in shifts) <= 2
    assert 0.5 <= min(each.contrast.min().item() for each in shifts) < 0.52
    assert 0.23 < max(each.brightness.max().item() for each in shifts) <= 0.25
    assert 0.48 < max(each.sigma for each in shifts) <= 0.5
    nothing = draw(KINDS, 0, (3, 8, 8), torch_generator(0, "test"))
    image = images(1, 3, 8, 8)
    torch.testing.assert_close(nothing(image), image)


@pytest.mark.parametrize("dtype", [torch.float32, torch.uint8])
@pytest.mark.parametrize("kind", KINDS)
def test_a_client_s_images_have_one_shift_in_all_splits(kind: Kind, dtype: torch.dtype) -> None:
    before = twins(dtype)
    untouched = before.train.inputs.clone()
    after = shifted(before, [FIRST, SECOND], [SECOND, FIRST], [kind], 1, seed=0)
    train, test = after.train.inputs, after.test.inputs
    assert train.dtype == test.dtype == dtype
    for one, other in ((0, 2), (1, 3)):
        assert torch.equal(train[one], train[other])
    assert torch.equal(train[0], test[1])
    assert torch.equal(train[1], test[0])
    assert not torch.equal(train[0], train[1])
    assert torch.equal(train[4], untouched[4])  # of no client
    assert torch.equal(before.train.inputs, untouched)
    assert torch.equal(after.train.labels, before.train.labels)


def test_a_shift_depends_on_seed_and_client_alone() -> None:
    two = shifted(twins(), [FIRST, SECOND], [FIRST, SECOND], ["colour"], 1, seed=0)
    nobody = np.empty(0, dtype=np.int64)
    one = shifted(twins(), [SECOND, FIRST, nobody], [nobody] * 3, ["colour"], 1, seed=0)
    other = shifted(twins(), [FIRST, SECOND], [FIRST, SECOND], ["colour"], 1, seed=1)
    assert torch.equal(two.train.inputs[0], one.train.inputs[1])
    assert not torch.equal(two.train.inputs[0], other.train.inputs[0])


def test_without_kinds_nothing_changes() -> None:
    dataset = replace(twins())
    assert shifted(dataset, [FIRST], [SECOND], [], 1, seed=0) is dataset


def test_validation_samples_and_test_splits_are_shifted() -> None:
    words = ["clients.count=4", "clients.per_round=2", "data.validation=0.2", "partition=iid"]
    plain = load(*words)
    other = load(*words, "partition=feature_shift", "partition.shift.strength=1")
    for before, after in zip(plain.clients, other.clients, strict=True):
        for name in ("train_index", "validation_index", "test_index"):
            assert torch.equal(getattr(before, name), getattr(after, name))
        changed = (plain.train.inputs != other.train.inputs).flatten(1).any(dim=1)
        assert changed[after.train_index].all()
        assert changed[after.validation_index].all()
        assert (
            (plain.test.inputs != other.test.inputs).flatten(1).any(dim=1)[after.test_index].all()
        )


def test_other_partitions_of_the_labels_take_the_keys() -> None:
    words = ["partition=dirichlet", "partition.shift.kinds=[rotation,blur]", "data.subset=200"]
    federation = federate("clients.count=4", "clients.per_round=2", *words)
    assert federation.run_round(1).metrics["train/loss"] > 0


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["partition.shift.kinds=[tint]"], r"partition\.shift\.kinds\.0=tint"),
        (["partition.shift.strength=2"], r"partition\.shift\.strength=2"),
        (["data=spiral"], r"partition\.shift\.kinds=\['colour'\]: needs images"),
    ],
)
def test_wrong_values_are_named(words: list[str], line: str) -> None:
    with pytest.raises(InputError, match=line):
        federate("partition=feature_shift", *words)


def test_personal_models_are_scored_on_their_clients_own_images() -> None:
    words = ["clients.count=4", "clients.per_round=4", "data.subset=200", "rounds=1"]
    federation = federate("partition=feature_shift", *words)
    metrics = federation.run_round(1).metrics
    found: dict[str, list[float]] = {kind: [] for kind in ("uniform", "local", "test_split")}
    data, totals = federation.data, federation.data.test.labels.bincount(minlength=10)
    for client in data.clients:
        model = federation.store.model(client.client)
        inputs, labels = data.test.gather(client.test_index)
        right = federation.module.logits_with(model, inputs).argmax(dim=1) == labels
        found["test_split"].append(right.float().mean().item())
        weights = {"uniform": client.class_counts > 0, "local": client.class_counts}
        for kind, weight in weights.items():
            held = [c for c in range(10) if (labels == c).any()]
            each = {c: (weight[c] * totals[c]).item() for c in held}
            right_share = sum(w * right[labels == c].float().mean().item() for c, w in each.items())
            found[kind].append(right_share / sum(each.values()))
    for kind, values in found.items():
        assert metrics[f"personal/accuracy_{kind}"] == pytest.approx(mean(values), rel=1e-6)
    assert "personal/accuracy_whole" not in metrics


@pytest.mark.parametrize("words", ["measure.personal.kinds=[whole]", "measure.personal.samples=99"])
def test_other_clients_images_are_not_scored(words: str) -> None:
    with pytest.raises(InputError, match=r"^measure\.personal: with partition\.shift"):
        federate("partition=feature_shift", words)


def accuracy(*method: str) -> float:
    """Mean over five seeds of the accuracies of received models on the clients' own test images."""
    clients = ["clients.count=10", "clients.per_round=10", "local.batch_size=20", "local.epochs=3"]
    shift = ["partition.shift.kinds=[colour]", "partition.shift.strength=1"]
    words = ["partition=feature_shift", *shift, *clients, *BODY, *method]
    found = []
    for seed in range(5):
        federation = federate(*words, f"seed={seed}", "rounds=10", "measure.personal.every=10")
        for round in range(1, 11):
            metrics = federation.run_round(round).metrics
        found.append(metrics["personal/accuracy_test_split"])
    return mean(found)


@pytest.mark.slow
def test_shared_weights_do_better_with_the_clients_own_batchnorm() -> None:
    """FedBN's claim, with its own statistic, the accuracy before local training."""
    own = "personalization._target_=support.shifted_bodies.ReceivedNorm"
    ahead = accuracy("algorithm=fedbn", own)
    assert ahead > accuracy("algorithm=fedavg", "personalization=received") + 0.05


@pytest.mark.parametrize("kind", KINDS)
def test_a_client_may_have_no_images(kind: Kind) -> None:
    nothing = np.arange(0)
    found = shifted(twins(), [FIRST, nothing], [nothing, FIRST], [kind], 0.5, 0)
    assert (found.train.inputs[FIRST] != twins().train.inputs[FIRST]).any()
    assert torch.equal(found.train.inputs[SECOND], twins().train.inputs[SECOND])
