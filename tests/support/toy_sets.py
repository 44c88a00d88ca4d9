"""Datasets with as little in them as can be: ``data._target_=support.toy_sets.OneClass``."""

from dataclasses import replace
from pathlib import Path

import torch

from fedexp.core.description import Description
from fedexp.data.dataset import Dataset, Source, Split

SHAPE = (1, 8, 8)


class Noise(Source):
    """Random images whose classes take turns."""

    train, test, classes = 40, 10, 4

    def describe(self) -> Description:
        return Description("noise", SHAPE, tuple("abcd"[: self.classes]))

    def load(self, cache: Path) -> Dataset:
        return Dataset(self.describe(), self._draw(self.train), self._draw(self.test))

    def _draw(self, count: int) -> Split:
        inputs = torch.randn(count, *SHAPE, generator=torch.Generator().manual_seed(count))
        return Split(inputs, torch.arange(count) % self.classes)


class UnseenClasses(Noise):
    """The test images are of four other classes."""

    def describe(self) -> Description:
        return replace(super().describe(), unseen_classes=tuple("efgh"))

    def load(self, cache: Path) -> Dataset:
        train, test = self._draw(self.train), self._draw(self.test)
        return Dataset(self.describe(), train, replace(test, labels=test.labels + self.classes))


class OneClass(Noise):
    classes = 1


class OneSample(Noise):
    train = 1


class NothingElse(Noise):
    """One sample of the only class, and one to test on."""

    train, test, classes = 1, 1, 1


class OneEach(Noise):
    """Every client has one sample, with as many clients as classes and partition=shards."""

    train, test = 4, 1
