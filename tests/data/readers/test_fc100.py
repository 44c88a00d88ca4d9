from pathlib import Path
from typing import Literal

import pytest
import torch
from support.image_sets import write_all_of_cifar100
from support.torchvision_files import accept_any_checksum

from fedexp.data.readers.cifar100_classes import CLASSES
from fedexp.data.readers.fc100 import FC100
from fedexp.errors import InputError

# The coarse labels of CIFAR-100 and their fine classes, typed from the list on its page: testing
# has 0, 7, 12, 14, validation 8, 11, 13, 16.
TEST = """beaver dolphin otter seal whale bee beetle butterfly caterpillar cockroach fox porcupine
possum raccoon skunk baby boy girl man woman"""
VALIDATION = """bear leopard lion tiger wolf camel cattle chimpanzee elephant kangaroo crab lobster
snail spider worm hamster mouse rabbit shrew squirrel"""


def reader(root: Path, unseen: Literal["test", "validation"] = "test") -> FC100:
    return FC100(root, download=False, unseen=unseen, mean=None, std=None)


@pytest.mark.parametrize(("unseen", "names"), [("test", TEST), ("validation", VALIDATION)])
def test_classes_are_divided_by_superclass(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    unseen: Literal["test", "validation"],
    names: str,
) -> None:
    accept_any_checksum(monkeypatch)
    write_all_of_cifar100(tmp_path)
    dataset = reader(tmp_path, unseen).load(tmp_path / "unused")
    about = dataset.description
    reserved = set(f"{TEST} {VALIDATION}".split())
    assert about.unseen_classes == tuple(sorted(names.split()))
    assert about.classes == tuple(sorted(set(CLASSES) - reserved))
    assert len(about.superclasses) == about.num_classes == 60
    assert len(set(about.superclasses)) == 12
    assert about.test_labels == range(60, 80)
    both = (*about.classes, *about.unseen_classes)
    for split, labels in ((dataset.train, range(60)), (dataset.test, range(60, 80))):
        assert split.labels.bincount(minlength=80)[labels].tolist() == [4] * len(labels)
        fine = split.inputs[:, 0, 0, 0].tolist()  # the first pixel is CIFAR-100's own label
        assert [CLASSES[label] for label in fine] == [both[label] for label in split.labels]
    assert dataset.mean == (0.5071, 0.4865, 0.4409)


def test_train_and_test_images_are_merged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    accept_any_checksum(monkeypatch)
    write_all_of_cifar100(tmp_path, train=5, test=2)
    dataset = reader(tmp_path).load(tmp_path / "unused")
    assert len(dataset.train) == 60 * 7
    assert len(dataset.test) == 20 * 7
    assert dataset.train.inputs.dtype == torch.uint8


def test_absent_files_are_one_line(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"data\.root=.*cifar-100-python is absent.*unpack"):
        reader(tmp_path).describe()
