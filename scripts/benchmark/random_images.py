"""Random images in place of CIFAR-10, to measure times where the dataset's files are missing."""

from pathlib import Path

import torch

from fedexp.core.description import Description
from fedexp.data.dataset import Dataset, Source, Split

OVERRIDES = [
    *("data=digits", "~data.split_seed"),
    "data._target_=benchmark.random_images.RandomImages",
]


Channels = tuple[float, float, float]


class RandomImages(Source):
    """Random images with CIFAR-10's normalisation and its numbers of images, classes and pixels."""

    def __init__(
        self, mean: Channels = (0.4914, 0.4822, 0.4465), std: Channels = (0.2023, 0.1994, 0.201)
    ) -> None:
        self.mean, self.std = mean, std

    def describe(self) -> Description:
        return Description("random images", (3, 32, 32), tuple(map(str, range(10))))

    def load(self, cache: Path) -> Dataset:
        draw = torch.Generator().manual_seed(0)

        def split(size: int) -> Split:
            images = torch.randint(256, (size, 3, 32, 32), generator=draw, dtype=torch.uint8)
            return Split(images, torch.arange(size) % 10)

        return Dataset(self.describe(), split(50_000), split(10_000), self.mean, self.std)
