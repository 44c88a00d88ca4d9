"""FC100: CIFAR-100 divided by super-class, for few-shot evaluation on classes never trained on."""

from pathlib import Path
from typing import Literal

import torch
from pydantic import PositiveFloat

from fedexp.core.description import Description
from fedexp.data.cifar100_classes import CLASSES, SUPERCLASS_OF
from fedexp.data.dataset import Dataset, Source, Split
from fedexp.data.torchvision_sets import TorchvisionDataset

Unseen = Literal["test", "validation"]

UNSEEN_GROUPS: dict[Unseen, tuple[str, ...]] = {
    "validation": (
        "large carnivores",
        "large omnivores and herbivores",
        "non-insect invertebrates",
        "small mammals",
    ),
    "test": ("aquatic mammals", "insects", "medium-sized mammals", "people"),
}
"""The super-classes that nobody trains on: 20 classes for validation, 20 for testing."""


class FC100(Source):
    """Oreshkin et al., NeurIPS 2018: 60 classes to train on, 20 others in the test split.

    The train and the test images of CIFAR-100 are merged, 600 of each class. The base classes have
    the labels 0 to 59 in alphabetical order, the unseen ones 60 to 79.

    Args:
        root: the folder in which torchvision keeps CIFAR-100; ``~`` is expanded.
        download: fetch it into ``root`` if it is not there.
        unseen: which unseen classes are the test split: those for testing, or those on which
            settings are chosen.
        mean: of each channel, of inputs in [0, 1]; None takes CIFAR-100's usual constants.
        std: likewise.

    Raises:
        InputError: as ``TorchvisionDataset``.
    """

    def __init__(
        self,
        root: Path,
        download: bool,
        unseen: Unseen,
        mean: tuple[float, ...] | None,
        std: tuple[PositiveFloat, ...] | None,
    ) -> None:
        self._cifar100 = TorchvisionDataset("cifar100", root, download, mean, std)
        reserved = {group for groups in UNSEEN_GROUPS.values() for group in groups}
        self.base = [name for name in CLASSES if SUPERCLASS_OF[name] not in reserved]
        self.unseen = [name for name in CLASSES if SUPERCLASS_OF[name] in UNSEEN_GROUPS[unseen]]

    def describe(self) -> Description:
        """Shape and classes. Raises InputError if CIFAR-100 is absent and may not be downloaded."""
        return Description(
            "fc100",
            self._cifar100.describe().input_shape,
            tuple(self.base),
            superclasses=tuple(SUPERCLASS_OF[name] for name in self.base),
            unseen_classes=tuple(self.unseen),
        )

    def load(self, cache: Path) -> Dataset:
        """The dataset; nothing is cached. Raises InputError if CIFAR-100 cannot be read."""
        found, about = self._cifar100.load(cache), self.describe()
        inputs = torch.cat([found.train.inputs, found.test.inputs])
        labels = torch.cat([found.train.labels, found.test.labels])
        new_label = torch.full((len(CLASSES),), -1)
        for label, name in enumerate([*self.base, *self.unseen]):
            new_label[CLASSES.index(name)] = label
        labels = new_label[labels]
        train = (labels >= 0) & (labels < about.num_classes)
        test = labels >= about.num_classes
        return Dataset(
            about,
            train=Split(inputs[train], labels[train]),
            test=Split(inputs[test], labels[test]),
            mean=found.mean,
            std=found.std,
        )
