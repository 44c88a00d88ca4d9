import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from support.image_sets import TEST, TRAIN, write_tiny_imagenet

from fedexp.data.readers.tiny_imagenet import TinyImageNet
from fedexp.errors import InputError

ARGUMENTS: dict[str, Any] = {
    "class_order": "sorted",
    "image_size": 64,
    "mean": (0.485, 0.456, 0.406),
    "std": (0.229, 0.224, 0.225),
}


def reader(root: Path, **changes: Any) -> TinyImageNet:
    return TinyImageNet(root, **(ARGUMENTS | changes))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    write_tiny_imagenet(tmp_path / "data")
    return tmp_path / "data"


@pytest.mark.parametrize(
    ("order", "ids", "names"),
    [
        ("sorted", (1, 2, 3), ("crane (n01)", "goldfish", "crane (n03)")),
        ("wnids", (3, 1, 2), ("crane (n03)", "crane (n01)", "goldfish")),
    ],
)
def test_labels_follow_the_class_order(
    root: Path, tmp_path: Path, order: str, ids: tuple[int, ...], names: tuple[str, ...]
) -> None:
    """Every pixel says which image it is; the grey one has become colour."""
    dataset = reader(root, class_order=order).load(tmp_path / "cache")
    assert dataset.description.classes == names
    assert dataset.description.input_shape == (3, 64, 64)
    for split, count, first in ((dataset.train, TRAIN, 0), (dataset.test, TEST, 5)):
        values = torch.tensor([10 * each + first + i for each in ids for i in range(count)])
        expected = values.to(torch.uint8)[:, None, None, None].expand(-1, 3, 64, 64)
        assert torch.equal(split.inputs, expected)
        assert split.labels.tolist() == [label for label in range(3) for _ in range(count)]
        assert split.labels.dtype == torch.int64
    assert (dataset.mean, dataset.std) == (ARGUMENTS["mean"], ARGUMENTS["std"])


def test_the_root_may_be_the_unpacked_folder(root: Path, tmp_path: Path) -> None:
    expected = reader(root).load(tmp_path / "cache")
    found = reader(root / "tiny-imagenet-200").load(tmp_path / "cache")
    assert torch.equal(found.train.inputs, expected.train.inputs)


def test_images_can_be_made_smaller(root: Path, tmp_path: Path) -> None:
    dataset = reader(root, image_size=32).load(tmp_path / "cache")
    assert dataset.train.inputs.shape == (3 * TRAIN, 3, 32, 32)
    assert dataset.train.inputs[:, 0, 5, 5].tolist() == [
        10 * each + i for each in (1, 2, 3) for i in range(TRAIN)
    ]


@pytest.mark.parametrize("absent", ["wnids.txt", "words.txt", "train", "val/val_annotations.txt"])
def test_what_is_absent_is_named_with_how_to_get_it(root: Path, absent: str) -> None:
    path = root / "tiny-imagenet-200" / absent
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    advice = rf"data\.root={root}: there is no {re.escape(str(path))}; unpack http://\S+ in {root}"
    with pytest.raises(InputError, match=advice):
        reader(root).describe()


def remove_a_class(folder: Path) -> None:
    shutil.rmtree(folder / "train/n02")


def empty_a_class(folder: Path) -> None:
    shutil.rmtree(folder / "train/n02/images")


def annotate_an_unknown_class(folder: Path) -> None:
    with (folder / "val/val_annotations.txt").open("a") as stream:
        stream.write("val_0.JPEG\tn99\t0\t0\t1\t1\n")


def remove_a_test_image(folder: Path) -> None:
    (folder / "val/images/val_1.JPEG").unlink()


def replace_by_a_larger_image(folder: Path) -> None:
    Image.new("RGB", (70, 64)).save(folder / "train/n01/images/n01_1.JPEG")


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (remove_a_class, r"n02: cannot be read \(No such file"),
        (empty_a_class, "n02: a class folder without images"),
        (annotate_an_unknown_class, "val_annotations.txt: line 7 has no image and class"),
        (remove_a_test_image, r"val_1\.JPEG: cannot be read"),
        (replace_by_a_larger_image, r"n01_1\.JPEG: is 70x64, .* data\.image_size"),
    ],
)
def test_a_damaged_folder_is_one_line(
    root: Path, tmp_path: Path, spoil: Callable[[Path], None], message: str
) -> None:
    spoil(root / "tiny-imagenet-200")
    with pytest.raises(InputError, match=message):
        reader(root).load(tmp_path / "cache")


def test_constants_have_three_numbers(root: Path) -> None:
    with pytest.raises(InputError, match=r"data\.mean=\[0\.5\]"):
        reader(root, mean=(0.5,))
