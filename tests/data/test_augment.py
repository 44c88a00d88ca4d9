import math
import typing

import numpy as np
import pytest
import torch

from fedexp.config.schema import Data
from fedexp.core.description import Description
from fedexp.core.randomness import torch_generator
from fedexp.data.augment import (
    augmentations,
    crop,
    crop_flip,
    flip,
    half_crop_flip,
    rotate,
)
from fedexp.data.dataset import Dataset, Split
from fedexp.data.federated import FederatedData

IMAGES = torch.arange(1, 1 + 64 * 3 * 6 * 5, dtype=torch.float32).view(64, 3, 6, 5)
AUGMENTATIONS = augmentations(torch.tensor([1, 2, 3]))


def test_flip_mirrors_about_half_of_the_images_and_only_whole_ones() -> None:
    flipped = flip(IMAGES, torch_generator(0, "test"))
    mirrored = [torch.equal(a, b.flip(-1)) for a, b in zip(flipped, IMAGES, strict=True)]
    untouched = [torch.equal(a, b) for a, b in zip(flipped, IMAGES, strict=True)]
    assert all(m != u for m, u in zip(mirrored, untouched, strict=True))
    assert 16 < sum(mirrored) < 48  # 32 expected, four standard deviations


def test_crop_is_padding_and_cutting_each_image_at_its_own_place() -> None:
    cropped = crop(IMAGES, torch_generator(0, "test"), padding=2)
    padded = torch.nn.functional.pad(IMAGES, [2, 2, 2, 2])
    places = []
    for image, source in zip(cropped, padded, strict=True):
        found = [
            (top, left)
            for top in range(5)
            for left in range(5)
            if torch.equal(image, source[:, top : top + 6, left : left + 5])
        ]
        assert len(found) == 1
        places += found
    assert len(set(places)) > 15  # of 25


def test_the_schema_allows_exactly_the_augmentations() -> None:
    allowed = typing.get_args(Data.model_fields["augment"].annotation)
    assert sorted(allowed) == sorted(AUGMENTATIONS)


@pytest.mark.parametrize("name", sorted(AUGMENTATIONS.keys() - {"none"}))
def test_draws_come_from_the_generator_and_types_stay(name: str) -> None:
    augment = AUGMENTATIONS[name]
    assert augment is not None
    images = IMAGES.to(torch.uint8)
    results = [augment(images, torch_generator(0, "test", part)) for part in (1, 1, 2)]
    assert results[0].dtype == torch.uint8
    assert results[0].shape == images.shape
    assert torch.equal(results[0], results[1])
    assert not torch.equal(results[0], results[2])


def test_crop_flip_is_crop_then_flip() -> None:
    generator = torch_generator(0, "test")
    expected = flip(crop(IMAGES, generator), generator)
    assert torch.equal(crop_flip(IMAGES, torch_generator(0, "test")), expected)


def test_crop_pads_with_the_given_value_of_each_channel() -> None:
    images = torch.zeros(200, 2, 3, 4, dtype=torch.uint8)
    cropped = crop(images, torch_generator(0, "test"), padding=2, fill=torch.tensor([7, 200]))
    assert cropped.dtype == torch.uint8
    assert set(cropped[:, 0].unique().tolist()) == {0, 7}
    assert set(cropped[:, 1].unique().tolist()) == {0, 200}
    black = crop(images + 1, torch_generator(0, "test"), padding=2)
    assert torch.equal(black == 0, cropped != 0)  # the border is at the same place


def test_half_crop_flip_shifts_about_half_of_the_images() -> None:
    images = torch.ones(400, 1, 6, 6, dtype=torch.uint8)
    augmented = half_crop_flip(images, torch_generator(0, "test"), fill=torch.tensor([9]))
    shifted = (augmented == 9).flatten(1).any(dim=1)
    # Half of 400, of which 1 in 81 is cut out at its own place: 197.5 expected, four deviations.
    assert 157 < shifted.sum() < 238
    assert set(augmented.unique().tolist()) == {1, 9}


def test_half_crop_flip_flips_first_and_leaves_the_others_whole() -> None:
    augmented = half_crop_flip(IMAGES, torch_generator(0, "test"), fill=torch.zeros(3))
    generator = torch_generator(0, "test")
    flipped = flip(IMAGES, generator)
    cropped = crop(flipped, generator)
    whole = [torch.equal(a, b) for a, b in zip(augmented, flipped, strict=True)]
    shifted = [torch.equal(a, b) for a, b in zip(augmented, cropped, strict=True)]
    assert all(w or s for w, s in zip(whole, shifted, strict=True))
    assert 16 < sum(whole) < 48


@pytest.mark.parametrize("size", [(5, 5), (7, 4)])
def test_rotation_takes_the_nearest_pixel_and_black_from_outside(size: tuple[int, int]) -> None:
    """Against a loop over pixels."""
    height, width = size
    images = torch.arange(1, 1 + 8 * height * width, dtype=torch.uint8).view(8, 1, height, width)
    rotated = rotate(images, torch_generator(0, "test"), degrees=40)
    angles = (2 * torch.rand(8, generator=torch_generator(0, "test")) - 1) * math.radians(40)
    for image, result, angle in zip(images, rotated, angles.tolist(), strict=True):
        expected = torch.zeros_like(result)
        for row in range(height):
            for column in range(width):
                y, x = row - (height - 1) / 2, column - (width - 1) / 2
                from_row = round(math.cos(angle) * y - math.sin(angle) * x + (height - 1) / 2)
                from_column = round(math.sin(angle) * y + math.cos(angle) * x + (width - 1) / 2)
                if 0 <= from_row < height and 0 <= from_column < width:
                    expected[0, row, column] = image[0, from_row, from_column]
        assert torch.equal(result, expected)


def test_a_quarter_turn_is_exact_and_no_turn_changes_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    images = torch.arange(2 * 16, dtype=torch.float32).view(2, 1, 4, 4)
    assert torch.equal(rotate(images, torch_generator(0, "test"), degrees=0), images)
    monkeypatch.setattr(torch, "rand", lambda *shape, generator: torch.ones(*shape))
    assert torch.equal(
        rotate(images, torch_generator(0, "test"), degrees=90), images.rot90(-1, (2, 3))
    )


def test_rotation_is_at_most_15_degrees_either_way() -> None:
    """The corner of a 41-pixel line of which the ends move by 20 sin(15) = 5.2 pixels at most."""
    line = torch.zeros(300, 1, 41, 41)
    line[:, :, 20] = 1
    ends = rotate(line, torch_generator(0, "test"))[:, 0, :, 2].nonzero()[:, 1] - 20
    assert ends.min() in (-5, -4)
    assert ends.max() in (4, 5)


def test_mean_padding_uses_the_mean_colour_of_the_data() -> None:
    """0.5 and 0.25 of 255 are 127.5 and 63.75: 128 (to even) and 64."""
    dataset = Dataset(
        Description("toy", (2, 3, 3), ("a", "b")),
        Split(torch.zeros(50, 2, 3, 3, dtype=torch.uint8), torch.zeros(50, dtype=torch.int64)),
        Split(torch.zeros(1, 2, 3, 3, dtype=torch.uint8), torch.zeros(1, dtype=torch.int64)),
        mean=(0.5, 0.25),
        std=(1.0, 1.0),
    )
    data = FederatedData(
        dataset, [np.arange(50)], [np.arange(1)], "crop_flip_mean", 0, torch.device("cpu")
    )
    batches = data.clients[0].local_batches(round=1, batch_size=50)
    augmented = batches.augmented(dataset.train.inputs)
    assert set(augmented[:, 0].unique().tolist()) == {0, 128}
    assert set(augmented[:, 1].unique().tolist()) == {0, 64}
