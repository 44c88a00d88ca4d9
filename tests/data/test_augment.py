import pytest
import torch

from fedexp.core.randomness import torch_generator
from fedexp.data.augment import AUGMENTATIONS, crop, crop_flip, flip

IMAGES = torch.arange(1, 1 + 64 * 3 * 6 * 5, dtype=torch.float32).view(64, 3, 6, 5)


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


@pytest.mark.parametrize("name", sorted(AUGMENTATIONS))
def test_draws_come_from_the_generator_and_types_stay(name: str) -> None:
    augment = AUGMENTATIONS[name]
    if augment is None:
        return
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
