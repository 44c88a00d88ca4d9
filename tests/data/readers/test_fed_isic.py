from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from support.image_sets import LESIONS, write_fed_isic

from fedexp.data.readers.fed_isic import CLASSES, IMAGES, SPLITS, FedISIC
from fedexp.errors import InputError

ARGUMENTS: dict[str, Any] = {
    "short_side": 8,
    "image_size": 6,
    "split": "within",
    "test_fraction": 0.3,
    "split_seed": 0,
    "mean": (0.485, 0.456, 0.406),
    "std": (0.229, 0.224, 0.225),
}


def reader(root: Path, **changes: Any) -> FedISIC:
    return FedISIC(root, **(ARGUMENTS | changes))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    write_fed_isic(tmp_path)
    return tmp_path / "fed_isic2019"


def test_the_splits_labels_and_centres_are_those_of_the_list(root: Path, tmp_path: Path) -> None:
    dataset = reader(root).load(tmp_path / "cache")
    assert dataset.description.classes == CLASSES
    assert dataset.description.input_shape == (3, 6, 6)
    for split, fold in ((dataset.train, "train"), (dataset.test, "test")):
        listed = [(number, row) for number, row in enumerate(LESIONS) if row[3] == fold]
        assert split.inputs[:, 1, 3, 3].tolist() == [10 * number for number, _ in listed]
        assert split.labels.tolist() == [row[1] for _, row in listed]
        assert split.users is not None
        assert split.users.tolist() == [str(row[2]) for _, row in listed]


def test_whole_centres_can_be_for_testing(root: Path, tmp_path: Path) -> None:
    centres = {str(row[2]) for row in LESIONS}
    tested = set[str]()
    for seed in range(20):
        dataset = reader(root, split="users", split_seed=seed).load(tmp_path / "cache")
        assert dataset.train.users is not None
        assert dataset.test.users is not None
        train, test = set(dataset.train.users), set(dataset.test.users)
        assert len(dataset.train) + len(dataset.test) == len(LESIONS)
        assert train | test == centres
        assert not train & test
        tested |= test
    assert tested == centres  # another seed takes others


def test_the_centre_is_cut_out_without_resampling(root: Path, tmp_path: Path) -> None:
    """An image of 12x8 in the first place of the training split: columns 3 to 8, rows 1 to 6."""
    pixels = np.random.default_rng(0).integers(0, 256, (8, 12, 3), dtype=np.uint8)
    path = root / IMAGES / f"{LESIONS[0][0]}.jpg"
    Image.fromarray(pixels).save(path, format="png")  # exact; the format is read from the content
    dataset = reader(root).load(tmp_path / "cache")
    expected = torch.from_numpy(pixels[1:7, 3:9]).permute(2, 0, 1)
    assert torch.equal(dataset.train.inputs[0], expected)


def test_an_image_of_another_scale_is_scaled_first(root: Path, tmp_path: Path) -> None:
    """16x20 becomes 8x10: of a left white half the cut of 6x6 shows three columns."""
    image = Image.new("RGB", (16, 20))
    image.paste((255, 255, 255), (0, 0, 8, 20))
    image.save(root / IMAGES / f"{LESIONS[3][0]}.jpg", format="png")
    cut = reader(root).load(tmp_path / "cache").train.inputs[2, 0]
    assert (cut[:, :2] == 255).all()
    assert (cut[:, 4:] == 0).all()
    assert (cut[:, 2] > 127).all()
    assert (cut[:, 3] < 128).all()


@pytest.mark.parametrize("absent", [SPLITS, IMAGES])
def test_what_is_absent_is_named_with_how_to_get_it(root: Path, absent: str) -> None:
    (root / absent).rename(root / "elsewhere")
    with pytest.raises(InputError, match=rf"data\.root={root}: there is no .*{absent}; .*FLamby"):
        reader(root).describe()


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("ISIC_1,0.0,1.0,8,0,train,train_0", "line 11 has the target 8; should be 0 to 7"),
        ("ISIC_1,0.0,1.0,1,0,validation,v_0", "line 11 has the fold validation"),
        ("ISIC_1,0.0,1.0,1", "line 11 has no center"),
    ],
)
def test_a_damaged_list_is_one_line(root: Path, line: str, message: str) -> None:
    with (root / SPLITS).open("a") as stream:
        stream.write(f"{line}\n")
    with pytest.raises(InputError, match=message):
        reader(root).describe()


def test_an_empty_list_is_one_line(root: Path) -> None:
    (root / SPLITS).write_text("image,target,center,fold\n")
    with pytest.raises(InputError, match="lists no image"):
        reader(root).describe()


def test_the_square_fits_the_short_side(root: Path) -> None:
    with pytest.raises(InputError, match=r"data\.image_size=9: must be at most data\.short_side=8"):
        reader(root, image_size=9)
