"""Fed-ISIC2019 as FLamby prepares it: skin lesions from six centres."""

import csv
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import MappingProxyType

import numpy as np
import torch

from fedexp.core.description import Description
from fedexp.data.dataset import Dataset, Deviations, Means, Source, Split, check_constants
from fedexp.data.image_decoding import Fit, ImageSize, decoded
from fedexp.data.train_test import SplitSeed, TestFraction, UserSplit, by_user
from fedexp.errors import InputError, readable

CLASSES = (
    "melanoma",
    "melanocytic nevus",
    "basal cell carcinoma",
    "actinic keratosis",
    "benign keratosis",
    "dermatofibroma",
    "vascular lesion",
    "squamous cell carcinoma",
)
"""Names of the classes 0 to 7; the ISIC codes are MEL, NV, BCC, AK, BKL, DF, VASC, SCC."""

IMAGES = "ISIC_2019_Training_Input_preprocessed"
SPLITS = "train_test_split"
_COLUMNS = ("image", "target", "center", "fold")
_BY_HAND = (
    "prepare it with download_isic.py and resize_images.py of "
    "https://github.com/owkin/FLamby (flamby/datasets/fed_isic2019)"
)


@dataclass
class FedISIC(Source):
    """23,247 dermatoscopic images of 8 diagnoses (du Terrail et al., NeurIPS 2022 datasets track).

    The centres are the users of the natural partition. FLamby divides each centre's images into
    train and test. Its images have normalised colours and a shorter side of 224 pixels.

    Args:
        root: FLamby's output folder, with ``train_test_split`` and
            ``ISIC_2019_Training_Input_preprocessed``; ``~`` is expanded. Nothing is written there.
        short_side: every image is first scaled (bilinear) until its shorter side has this many
            pixels.
        image_size: height and width of the square that is then cropped from the image's centre.
        split: ``within`` uses FLamby's split of each centre. ``users`` draws whole centres for
            testing.
        test_fraction: with ``split=users``, share of the centres for testing.
        split_seed: with ``split=users``, seed of the draw; independent of the run's seed.
        mean: mean of each channel, for inputs in [0, 1].
        std: standard deviation of each channel, for inputs in [0, 1].

    Raises:
        InputError: the constructor raises it if an argument is invalid, ``describe`` if a file is
            missing or the list of images is unreadable, ``load`` if an image is damaged.
    """

    unread_if = MappingProxyType(
        {"test_fraction": {"split": ("within",)}, "split_seed": {"split": ("within",)}}
    )

    root: Path
    short_side: ImageSize
    image_size: ImageSize
    split: UserSplit
    test_fraction: TestFraction
    split_seed: SplitSeed
    mean: Means
    std: Deviations

    def __post_init__(self) -> None:
        check_constants(self.mean, self.std, channels=3)
        if self.image_size > self.short_side:
            raise InputError(
                f"data.image_size={self.image_size}: must be at most "
                f"data.short_side={self.short_side}"
            )
        self.root = self.root.expanduser()

    def describe(self) -> Description:
        """Shape and classes; the list of images is read and checked."""
        _ = self._rows  # reads and checks the list
        return Description("fed_isic", (3, self.image_size, self.image_size), CLASSES)

    def load(self, cache: Path) -> Dataset:
        """Load the dataset; decoded images are cached in ``cache``/images."""
        about, rows = self.describe(), self._rows
        paths = [f"{IMAGES}/{row['image']}.jpg" for row in rows]
        fit = Fit("centre", self.short_side)
        images = torch.from_numpy(decoded(self.root, paths, about.input_shape, fit, cache))
        labels = torch.tensor([int(row["target"]) for row in rows])
        centres = np.array([row["center"] for row in rows])
        whole = Split(images, labels, centres)
        if self.split == "users":
            train, test = map(whole.take, by_user(centres, self.test_fraction, self.split_seed))
        else:
            train, test = whole.cut(sum(row["fold"] == "train" for row in rows))
        return Dataset(about, train, test, self.mean, self.std, fit)

    @cached_property
    def _rows(self) -> list[dict[str, str]]:
        """The rows of FLamby's list of images; the training images come first."""
        file = self.root / SPLITS
        if absent := [path for path in (file, self.root / IMAGES) if not path.exists()]:
            raise InputError(f"data.root={self.root}: there is no {absent[0]}; {_BY_HAND}")
        with readable(file, csv.Error, UnicodeDecodeError), file.open(newline="") as stream:
            rows = list(csv.DictReader(stream))
        for number, row in enumerate(rows, start=2):
            if problem := _misfit(row):
                raise InputError(f"{file}: line {number} {problem}")
        if not rows:
            raise InputError(f"{file}: lists no image")
        return sorted(rows, key=lambda row: row["fold"] != "train")


def _misfit(row: dict[str, str]) -> str | None:
    """What is wrong with a row of the list of images, in words; None if nothing."""
    if absent := [name for name in _COLUMNS if not row.get(name)]:
        return f"has no {absent[0]}"
    if row["fold"] not in ("train", "test"):
        return f"has the fold {row['fold']}; should be train or test"
    if row["target"] not in map(str, range(len(CLASSES))):
        return f"has the target {row['target']}; should be 0 to {len(CLASSES) - 1}"
    return None
