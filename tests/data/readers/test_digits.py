from pathlib import Path

import pytest
import torch
from sklearn.datasets import load_digits

from fedexp.data.dataset import Dataset
from fedexp.data.readers.digits import Digits


@pytest.fixture(scope="module")
def dataset() -> Dataset:
    return Digits().load(Path("unused"))


def test_shapes_and_types(dataset: Dataset) -> None:
    assert dataset.description == Digits().describe()
    assert dataset.description.input_shape == (1, 8, 8)
    assert dataset.description.classes == ("0", "1", "2", "3", "4", "5", "6", "7", "8", "9")
    assert dataset.train.inputs.shape == (1437, 1, 8, 8)
    assert dataset.test.inputs.shape == (360, 1, 8, 8)
    for split in (dataset.train, dataset.test):
        assert (split.inputs.dtype, split.labels.dtype) == (torch.float32, torch.int64)
        assert split.users is None


def test_every_digit_is_in_one_split_with_its_label(dataset: Dataset) -> None:
    """Undoes the normalisation by the two extreme grey values, 0 and 16."""
    raw = load_digits()
    inputs = torch.cat([dataset.train.inputs, dataset.test.inputs]).flatten(1)
    pixels = ((inputs - inputs.min()) / (inputs.max() - inputs.min()) * 16).round()
    labels = torch.cat([dataset.train.labels, dataset.test.labels])
    found = sorted(zip(pixels.tolist(), labels.tolist(), strict=True))
    assert found == sorted(zip(raw.data.tolist(), raw.target.tolist(), strict=True))


def test_the_training_pixels_have_mean_zero_and_deviation_one(dataset: Dataset) -> None:
    assert dataset.train.inputs.mean().item() == pytest.approx(0, abs=1e-5)
    assert dataset.train.inputs.std().item() == pytest.approx(1, abs=1e-5)


def test_the_split_is_stratified(dataset: Dataset) -> None:
    train, test = (split.labels.bincount() for split in (dataset.train, dataset.test))
    assert (test - 0.2 * (train + test)).abs().max() < 1


def test_the_split_is_always_the_same(dataset: Dataset) -> None:
    again = Digits().load(Path("unused"))
    assert torch.equal(again.train.inputs, dataset.train.inputs)
    assert torch.equal(again.test.labels, dataset.test.labels)


def test_another_seed_has_other_test_images_and_no_other_samples(dataset: Dataset) -> None:
    other = Digits(split_seed=1).load(Path("unused"))
    assert other.test.inputs.shape == dataset.test.inputs.shape
    assert not torch.equal(other.test.labels, dataset.test.labels)
    counts = [
        each.train.labels.bincount() + each.test.labels.bincount() for each in (other, dataset)
    ]
    assert torch.equal(*counts)
