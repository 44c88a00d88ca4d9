"""Handwritten digits that come with scikit-learn, without a download."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from fedexp.core.description import Description
from fedexp.data.dataset import Dataset, Source, Split
from fedexp.data.preparations.numbers import Numbers
from fedexp.data.train_test import SplitSeed

TEST_FRACTION = 0.2


@dataclass
class Digits(Source):
    """The 1,797 grey 8x8 digits of the UCI test set (Alpaydin and Kaynak, 1998), ten classes.

    Inputs are float32 [n, 1, 8, 8], normalised with the mean and the standard deviation of all
    training pixels. The split is stratified: 1,437 training and 360 test images.

    Args:
        split_seed: seed of the split; runs with equal seeds have the same test images.
    """

    split_seed: SplitSeed = 0  # configs of earlier versions lack this key

    def describe(self) -> Description:
        """The shape of the inputs and the names of the classes."""
        return Description("digits", (1, 8, 8), tuple("0123456789"))

    def load(self, cache: Path) -> Dataset:
        """Load the dataset; nothing is cached."""
        from sklearn.datasets import load_digits  # slow to import
        from sklearn.model_selection import train_test_split

        digits = load_digits()
        images = torch.from_numpy(digits.images).to(torch.float32).unsqueeze(1)
        labels = torch.from_numpy(digits.target).to(torch.int64)
        train, test = train_test_split(
            np.arange(len(labels)),
            test_size=TEST_FRACTION,
            stratify=labels,
            random_state=self.split_seed,
        )
        mean, std = images[train].mean().item(), images[train].std().item()
        raw = Numbers((1, 8, 8), (mean,), (std,))
        whole = Split(raw.prepare(images), labels)
        return Dataset(self.describe(), whole.take(train), whole.take(test), raw=raw)
