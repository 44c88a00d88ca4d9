"""Tiny ImageNet, with its official validation images as the test split."""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal

import numpy as np
import torch

from fedexp.core.description import Description
from fedexp.data.dataset import Dataset, Deviations, Means, Source, Split, check_constants
from fedexp.data.image_decoding import Fit, ImageSize, decoded
from fedexp.data.readers.image_tree import images_below
from fedexp.errors import InputError, readable

FOLDER = "tiny-imagenet-200"
"""Name of the folder in the dataset's archive."""

SIZE = 64
"""Height and width of the images."""

_FILES = ("wnids.txt", "words.txt", "train", "val/val_annotations.txt")
_BY_HAND = "unpack http://cs231n.stanford.edu/tiny-imagenet-200.zip"


@dataclass
class TinyImageNet(Source):
    """Colour images of 64x64 in 200 classes: 100,000 for training, 10,000 from val/ for testing.

    Grey images are converted to colour. The images of test/ have no labels and are not used.

    Args:
        root: the folder ``tiny-imagenet-200`` or its parent; ``~`` is expanded. Nothing is written
            there.
        class_order: order of the classes, which numbers the labels. ``sorted`` sorts the classes by
            WordNet id, ``wnids`` takes the order of the file ``wnids.txt``. Samples are in label
            order.
        image_size: height and width; images are resized (bilinear) if it is not 64.
        mean: mean of each channel, for inputs in [0, 1].
        std: standard deviation of each channel, for inputs in [0, 1].

    Raises:
        InputError: the constructor raises it if an argument is invalid, ``describe`` if a file is
            missing, ``load`` if a file is damaged.
    """

    root: Path
    class_order: Literal["sorted", "wnids"]
    image_size: ImageSize
    mean: Means
    std: Deviations

    def __post_init__(self) -> None:
        check_constants(self.mean, self.std, channels=3)
        self.root = self.root.expanduser()

    def describe(self) -> Description:
        """Shape and classes; a class has the first of its names in the file ``words.txt``."""
        shape = (3, self.image_size, self.image_size)
        return Description("tiny_imagenet", shape, self._names())

    def load(self, cache: Path) -> Dataset:
        """Load the dataset; decoded images are cached in ``cache``/images."""
        about = self.describe()
        (train, train_labels), (test, test_labels) = self._train(), self._test()
        fit = Fit("same" if self.image_size == SIZE else "stretch")
        images = decoded(self._folder, train + test, about.input_shape, fit, cache)
        labels = np.concatenate([train_labels, test_labels])
        parts = Split(torch.from_numpy(images), torch.from_numpy(labels)).cut(len(train))
        return Dataset(about, *parts, self.mean, self.std, fit)

    @cached_property
    def _folder(self) -> Path:
        """Folder of the unpacked archive. Raises InputError if a file in it is missing."""
        inside = (self.root / _FILES[0]).is_file()
        folder = self.root if inside else self.root / FOLDER
        if absent := [name for name in _FILES if not (folder / name).exists()]:
            raise InputError(
                f"data.root={self.root}: there is no {folder / absent[0]}; "
                f"{_BY_HAND} in {self.root}"
            )
        return folder

    @cached_property
    def _wnids(self) -> list[str]:
        """The WordNet id of each class, in label order."""
        with readable():
            listed = (self._folder / "wnids.txt").read_text().split()
        return sorted(listed) if self.class_order == "sorted" else listed

    def _names(self) -> tuple[str, ...]:
        """The first name of each class; if classes share this name, the WordNet id follows."""
        with readable():
            lines = (self._folder / "words.txt").read_text().splitlines()
        words = dict(line.split("\t", 1) for line in lines if "\t" in line)
        names = [words.get(wnid, wnid).split(",")[0] for wnid in self._wnids]
        return tuple(
            name if names.count(name) == 1 else f"{name} ({wnid})"
            for name, wnid in zip(names, self._wnids, strict=True)
        )

    def _train(self) -> tuple[list[str], np.ndarray]:
        """Paths and labels of the training images, sorted by class and name."""
        with readable():
            found = [
                images_below(self._folder, self._folder / "train" / wnid) for wnid in self._wnids
            ]
        for wnid, paths in zip(self._wnids, found, strict=True):
            if not paths:
                raise InputError(f"{self._folder / 'train' / wnid}: a class folder without images")
        labels = np.repeat(np.arange(len(found)), [len(paths) for paths in found])
        return [path for paths in found for path in paths], labels

    def _test(self) -> tuple[list[str], np.ndarray]:
        """Paths and labels of the images of val/, sorted by label, then by line of the file."""
        file = self._folder / "val" / "val_annotations.txt"
        with readable():
            rows = [line.split("\t") for line in file.read_text().splitlines()]
        label_of = {wnid: label for label, wnid in enumerate(self._wnids)}
        for number, row in enumerate(rows, start=1):
            if len(row) < 2 or row[1] not in label_of:
                raise InputError(f"{file}: line {number} has no image and class")
        labels = np.array([label_of[row[1]] for row in rows], dtype=np.int64)
        order = np.argsort(labels, kind="stable")
        return [f"val/images/{rows[i][0]}" for i in order], labels[order]
