"""Images in class folders, decoded once into one uint8 tensor."""

import re
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Literal

import numpy as np
import torch

from fedexp.core.description import Description
from fedexp.data.consistency import refuse
from fedexp.data.dataset import Dataset, Deviations, Means, Origin, Source, Split, check_constants
from fedexp.data.image_decoding import Fit, ImageSize, decoded, opened
from fedexp.data.readers.image_statistics import normalisation
from fedexp.data.readers.image_tree import find_images
from fedexp.data.train_test import SplitSeed, TestFraction, UserSplit, check_users, divide
from fedexp.errors import InputError


@dataclass
class ImageFolder(Source):
    """Images in folders train/<class>/ and test/<class>/, at any depth below the class folder.

    If there is only train/<class>/ or only <class>/, the images are split into training and test
    images as configured.

    Args:
        root: the folder that holds these folders; ``~`` is expanded. Nothing is written there.
        image_size: resize every image (bilinear, without cropping) to this height and width; None
            if all images have the same size.
        channels: 3 for colour, 1 for grey; every image is converted.
        test_fraction: if there is no test/ folder, the share for testing: of each class, or with
            ``split=users`` of the users.
        split: ``within`` draws test images from each class, so a user may be in both splits.
            ``users`` draws whole users for testing; existing folders train/ and test/ must then
            have different users.
        split_seed: seed of the split for testing.
        user_pattern: regular expression with one group, searched in each path relative to ``root``,
            such as "train/cat/anna_01.png". The group's match is the user.
        mean: mean of each channel, for inputs in [0, 1]; None measures it on the training images.
        std: standard deviation of each channel, for inputs in [0, 1]; None measures it on the
            training images.

    Raises:
        InputError: the constructor raises it if an argument is invalid, ``describe`` and ``load``
            if the folders are missing or have another structure, a path has no user, or an image
            is damaged or has another size.
    """

    root: Path
    image_size: ImageSize | None
    channels: Literal[1, 3]
    test_fraction: TestFraction
    split: UserSplit
    split_seed: SplitSeed
    user_pattern: str | None
    mean: Means | None
    std: Deviations | None

    def __post_init__(self) -> None:
        check_constants(self.mean, self.std, self.channels)
        if self.split == "users" and self.user_pattern is None:
            raise InputError("data.split=users: needs data.user_pattern, which finds the users")
        self.root = self.root.expanduser()
        self._pattern = None if self.user_pattern is None else _compile(self.user_pattern)

    def describe(self) -> Description:
        """Shape and classes, from the folders and the header of one image."""
        height, width = self._image_shape
        shape = (self.channels, height, width)
        return Description(self.root.resolve().name, shape, self._found[0])

    def load(self, cache: Path) -> Dataset:
        """Load the dataset; decoded images are cached in ``cache``/images."""
        about, (_, paths, *splits) = self.describe(), self._found
        fit = Fit("same" if self.image_size is None else "stretch")
        images = torch.from_numpy(decoded(self.root, paths, about.input_shape, fit, cache))
        train, test = (
            replace(part, inputs=own)
            for part, own in zip(splits, torch.split(images, list(map(len, splits))), strict=True)
        )
        constants = normalisation(train.inputs.numpy(), self.mean, self.std)
        return Dataset(about, train, test, *constants, fit)

    @cached_property
    def _found(self) -> tuple[tuple[str, ...], list[str], Split, Split]:
        """The class names, the paths of the images, and both splits without their images."""
        tree = find_images(self.root)
        users, folders = self._users(tree.paths), ("train", "test")
        index = tuple(np.split(np.arange(len(tree.paths)), [tree.num_train]))
        if not len(index[1]):
            whose, folders = users if self.split == "users" else None, ("", "")
            index = divide(tree.labels, whose, self.split, self.test_fraction, self.split_seed)
        paths = np.array(tree.paths, dtype=object)
        whole = Split(torch.empty(len(paths), 0), torch.from_numpy(tree.labels), users)
        train, test = (
            replace(whole.take(rows), origin=self._origin(folder, paths[rows]))
            for rows, folder in zip(index, folders, strict=True)
        )
        refuse(tree.classes, train, test)  # before images are decoded
        check_users(self.split, train.users, test.users, str(self.root))
        return tree.classes, [*paths[np.concatenate(index)]], train, test

    def _origin(self, folder: str, paths: np.ndarray) -> Origin:
        """The origin of the images at ``paths`` below ``folder``, or below the root if empty."""
        below = [path.removeprefix(f"{folder}/") for path in paths]
        return Origin(str(self.root / folder), np.array(below, dtype=object))

    @cached_property
    def _image_shape(self) -> tuple[int, int]:
        """Height and width of every image."""
        if self.image_size is not None:
            return self.image_size, self.image_size
        with opened(self.root / self._found[1][0]) as image:
            return image.height, image.width

    def _users(self, paths: list[str]) -> np.ndarray | None:
        """The user of each image, [n] strings; None without ``user_pattern``."""
        if self._pattern is None:
            return None
        matches = [self._pattern.search(path) for path in paths]
        for path, match in zip(paths, matches, strict=True):
            if match is None or match[1] is None:
                raise InputError(f"data.user_pattern={self.user_pattern}: finds no user in {path}")
        return np.array([match[1] for match in matches if match])


def _compile(pattern: str) -> re.Pattern[str]:
    try:
        compiled = re.compile(pattern)
    except re.error as error:
        raise InputError(
            f"data.user_pattern={pattern}: is not a regular expression ({error})"
        ) from error
    if compiled.groups != 1:
        raise InputError(f"data.user_pattern={pattern}: must have one group, has {compiled.groups}")
    return compiled
