from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from fedexp.data.preparations.images import Images
from fedexp.data.preparations.preparation import from_node
from fedexp.errors import InputError

COLOUR = Images((3, 4, 6), (0.5, 0.25, 0.0), (0.5, 0.25, 1.0), "stretch")


def test_pixels_are_normalised_by_channel() -> None:
    raw = torch.full((2, 3, 4, 6), 255, dtype=torch.uint8)
    expected = torch.tensor([(1 - 0.5) / 0.5, (1 - 0.25) / 0.25, 1.0]).view(1, 3, 1, 1)
    torch.testing.assert_close(COLOUR.prepare(raw), expected.expand(2, 3, 4, 6))


def test_channels_may_be_first_or_last_and_grey_images_have_none() -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (2, 3, 4, 6), dtype=np.uint8)
    assert torch.equal(COLOUR.read(np.moveaxis(pixels, 1, -1)), torch.from_numpy(pixels))
    grey = Images((1, 4, 6), (0.0,), (1.0,))
    assert torch.equal(grey.read(pixels[:, 0]), torch.from_numpy(pixels[:, :1]))


def test_files_and_pictures_get_the_size_of_training(tmp_path: Path) -> None:
    picture = Image.new("RGB", (12, 8), (10, 20, 30))
    picture.save(tmp_path / "a.png")
    found = COLOUR.read([tmp_path / "a.png", picture])
    assert found.shape == (2, 3, 4, 6)
    assert found[0, :, 0, 0].tolist() == found[1, :, 3, 5].tolist() == [10, 20, 30]


def test_without_resizing_in_training_an_image_of_another_size_is_refused(tmp_path: Path) -> None:
    same = Images((3, 4, 6), (0.0,) * 3, (1.0,) * 3)
    assert same.read([Image.new("RGB", (6, 4))]).shape == (1, 3, 4, 6)
    picture = Image.new("RGB", (12, 8))
    picture.save(tmp_path / "a.png")
    for image, name in ((picture, "predict"), (tmp_path / "a.png", r".*a\.png")):
        with pytest.raises(InputError, match=rf"^{name}: is 12x8; resize it to 6x4, the size of"):
            same.read([image])


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (np.zeros((2, 3, 4, 6)), r"takes uint8 images \[n, 3, 4, 6\], 0 to 255; .*float64"),
        (np.zeros((2, 3, 9, 6), np.uint8), r"takes uint8 images .*; these are \[2, 3, 9, 6\]"),
        (["absent.png"], r"^absent\.png: cannot be read as an image"),
        ([], r"takes uint8 images"),
    ],
)
def test_what_is_no_image_of_this_kind_is_refused(raw: object, message: str) -> None:
    with pytest.raises(InputError, match=message):
        COLOUR.read(raw)


def test_a_node_makes_an_equal_one() -> None:
    assert from_node(COLOUR.node) == COLOUR
    with pytest.raises(
        InputError, match=r"^preparation\._target_=os\.system: should be a subclass"
    ):
        from_node({"_target_": "os.system"})
