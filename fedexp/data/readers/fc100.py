"""FC100: CIFAR-100 divided by super-class, for few-shot evaluation on unseen classes."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch

from fedexp.core.description import Description
from fedexp.data.dataset import Dataset, Deviations, Means, Source, Split
from fedexp.data.readers.cifar100_classes import CLASSES, SUPERCLASS_OF
from fedexp.data.readers.torchvision_sets import TorchvisionDataset

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
"""Super-classes that no client trains on: 20 classes for validation, 20 for testing."""


@dataclass
class FC100(Source):
    """FC100: 60 base classes for training, 20 unseen classes for testing.

    The dataset is from Oreshkin et al., NeurIPS 2018. Each class has 600 images, the training and
    test images of CIFAR-100. In alphabetical order, the base classes have the labels 0 to 59, and
    the unseen classes the labels 60 to 79.

    Args:
        root: torchvision's folder of CIFAR-100; ``~`` is expanded.
        download: download CIFAR-100 into ``root`` if it is not there.
        unseen: the unseen classes to use: ``test`` for results, ``validation`` for the choice of
            settings.
        mean: mean of each channel, for inputs in [0, 1]; None for CIFAR-100's usual constants.
        std: standard deviation of each channel, for inputs in [0, 1]; None for CIFAR-100's usual
            constants.

    Raises:
        InputError: ``mean`` or ``std`` does not have three numbers.
    """

    root: Path
    download: bool
    unseen: Unseen
    mean: Means | None
    std: Deviations | None

    def __post_init__(self) -> None:
        self._cifar100 = TorchvisionDataset(
            "cifar100", self.root, self.download, self.mean, self.std
        )

    def describe(self) -> Description:
        """Shape and classes. Raises InputError if a file is missing and ``download`` is false."""
        reserved = {group for groups in UNSEEN_GROUPS.values() for group in groups}
        base = [name for name in CLASSES if SUPERCLASS_OF[name] not in reserved]
        unseen = [name for name in CLASSES if SUPERCLASS_OF[name] in UNSEEN_GROUPS[self.unseen]]
        return Description(
            "fc100",
            self._cifar100.describe().input_shape,
            tuple(base),
            superclasses=tuple(SUPERCLASS_OF[name] for name in base),
            unseen_classes=tuple(unseen),
        )

    def load(self, cache: Path) -> Dataset:
        """Load the dataset; nothing is cached. Raises InputError if CIFAR-100 cannot be read."""
        cifar100, about = self._cifar100.load(cache), self.describe()
        inputs = torch.cat([cifar100.train.inputs, cifar100.test.inputs])
        labels = torch.cat([cifar100.train.labels, cifar100.test.labels])
        new_label = torch.full((len(CLASSES),), -1)
        for label, name in enumerate(about.classes + about.unseen_classes):
            new_label[CLASSES.index(name)] = label
        labels = new_label[labels]
        train = (labels >= 0) & (labels < about.num_classes)
        test = labels >= about.num_classes
        parts = Split(inputs[train], labels[train]), Split(inputs[test], labels[test])
        return Dataset(about, *parts, cifar100.mean, cifar100.std)
