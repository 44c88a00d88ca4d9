"""CIFAR-10, CIFAR-100, Fashion-MNIST and SVHN, read and downloaded by torchvision."""

import logging
import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from http.client import HTTPException
from pathlib import Path
from typing import Literal

import torch

from fedexp.core.description import Description
from fedexp.data.dataset import Dataset, Deviations, Means, Source, Split, check_constants
from fedexp.data.readers.cifar100_classes import CLASSES, SUPERCLASSES
from fedexp.errors import InputError
from fedexp.state.abandoned import try_lock

LOGGER = logging.getLogger(__name__)

CIFAR10_CLASSES = "airplane automobile bird cat deer dog frog horse ship truck"

FASHION = "T-shirt/top,Trouser,Pullover,Dress,Coat,Sandal,Shirt,Sneaker,Bag,Ankle boot"


def _cifar(name: str, root: Path, train: bool, download: bool) -> Split:
    from torchvision import datasets  # slow to import

    found = getattr(datasets, name)(root, train=train, download=download)
    images = torch.from_numpy(found.data).permute(0, 3, 1, 2).contiguous()
    return Split(images, torch.tensor(found.targets))


def _fashion_mnist(root: Path, train: bool, download: bool) -> Split:
    raw = root / "FashionMNIST" / "raw"
    if download:  # torchvision checks packed files only; it would keep a damaged unpacked file
        for path in filter(_is_cut_short, raw.glob("*-ubyte")):
            path.unlink()
    from torchvision.datasets import FashionMNIST  # slow to import

    found = FashionMNIST(root, train=train, download=download)
    return Split(found.data.unsqueeze(1), found.targets)


def _is_cut_short(path: Path) -> bool:
    """Whether an IDX file's size differs from the size in its header."""
    with path.open("rb") as file:
        *_, dimensions = file.read(4) or b"\0"
        sizes = [int.from_bytes(file.read(4), "big") for _ in range(dimensions)]
    return path.stat().st_size != 4 + 4 * dimensions + math.prod(sizes)


def _svhn(root: Path, train: bool, download: bool) -> Split:
    from torchvision.datasets import SVHN  # slow to import

    found = SVHN(root, split="train" if train else "test", download=download)
    return Split(torch.from_numpy(found.data).contiguous(), torch.from_numpy(found.labels))


@dataclass(frozen=True)
class _Known:
    """Facts about one dataset: its shape, constants and files.

    Attributes:
        read: a function that returns a split, given root, train and download.
        input_shape: [channels, height, width].
        classes: names in label order.
        mean: mean of each channel, for inputs in [0, 1].
        std: standard deviation of each channel, for inputs in [0, 1].
        files: paths of the files, relative to root.
        by_hand: advice to install the files by hand; ``{root}`` stands for the root.
        superclasses: the super-class of each class; empty if there are none.
    """

    read: Callable[[Path, bool, bool], Split]
    input_shape: tuple[int, int, int]
    classes: tuple[str, ...]
    mean: Means
    std: tuple[float, ...]
    files: tuple[str, ...]
    by_hand: str
    superclasses: tuple[str, ...] = ()


_CIFAR_PAGE = "https://www.cs.toronto.edu/~kriz/cifar.html"

_KNOWN = {
    "cifar10": _Known(
        read=partial(_cifar, "CIFAR10"),
        input_shape=(3, 32, 32),
        classes=tuple(CIFAR10_CLASSES.split()),
        mean=(0.4914, 0.4822, 0.4465),
        std=(0.2470, 0.2435, 0.2616),
        files=tuple(
            f"cifar-10-batches-py/{name}"
            for name in ("batches.meta", *(f"data_batch_{i}" for i in range(1, 6)), "test_batch")
        ),
        by_hand=f"unpack cifar-10-python.tar.gz from {_CIFAR_PAGE} in {{root}}",
    ),
    "cifar100": _Known(
        read=partial(_cifar, "CIFAR100"),
        input_shape=(3, 32, 32),
        classes=CLASSES,
        superclasses=SUPERCLASSES,
        mean=(0.5071, 0.4865, 0.4409),
        std=(0.2673, 0.2564, 0.2762),
        files=tuple(f"cifar-100-python/{name}" for name in ("meta", "train", "test")),
        by_hand=f"unpack cifar-100-python.tar.gz from {_CIFAR_PAGE} in {{root}}",
    ),
    "fashion_mnist": _Known(
        read=_fashion_mnist,
        input_shape=(1, 28, 28),
        classes=tuple(FASHION.split(",")),
        mean=(0.2860,),
        std=(0.3530,),
        files=tuple(
            f"FashionMNIST/raw/{split}-{kind}-ubyte"
            for split in ("train", "t10k")
            for kind in ("images-idx3", "labels-idx1")
        ),
        by_hand=(
            "unpack the four .gz files of https://github.com/zalandoresearch/fashion-mnist "
            "in {root}/FashionMNIST/raw"
        ),
    ),
    "svhn": _Known(
        read=_svhn,
        input_shape=(3, 32, 32),
        classes=tuple("0123456789"),
        mean=(0.4377, 0.4438, 0.4728),
        std=(0.1980, 0.2010, 0.1970),
        files=("train_32x32.mat", "test_32x32.mat"),
        by_hand=(
            "put train_32x32.mat and test_32x32.mat "
            "of http://ufldl.stanford.edu/housenumbers/ in {root}"
        ),
    ),
}

_UNREADABLE = (OSError, HTTPException, RuntimeError, ValueError, AssertionError)
"""torchvision's errors for missing or damaged files and for failed downloads."""


@dataclass
class TorchvisionDataset(Source):
    """A torchvision dataset as uint8 images [n, channels, height, width].

    Args:
        name: which dataset to load.
        root: torchvision's folder of the dataset; ``~`` is expanded.
        download: whether to download missing or damaged files into ``root``, which also gets an
            empty lock file. If false, nothing is written there.
        mean: mean of each channel, for inputs in [0, 1]; None for the dataset's usual constants.
        std: standard deviation of each channel, for inputs in [0, 1]; None for the dataset's usual
            constants.

    Raises:
        InputError: ``mean`` or ``std`` does not have one number for each channel.
    """

    name: Literal["cifar10", "cifar100", "fashion_mnist", "svhn"]
    root: Path
    download: bool
    mean: Means | None
    std: Deviations | None

    def __post_init__(self) -> None:
        self.root = self.root.expanduser()
        self._known = _KNOWN[self.name]
        check_constants(self.mean, self.std, channels=self._known.input_shape[0])

    def describe(self) -> Description:
        """Shape and classes. Raises InputError if a file is missing and ``download`` is false."""
        complete = all((self.root / file).is_file() for file in self._known.files)
        if not (complete or self.download):
            raise self._error("absent or incomplete; set data.download=true")
        known = self._known
        return Description(self.name, known.input_shape, known.classes, known.superclasses)

    def load(self, cache: Path) -> Dataset:
        """Load the dataset, after a download if necessary; ``cache`` is not used.

        Raises InputError if the dataset is missing or damaged and cannot be downloaded.
        """
        return Dataset(
            self.describe(),
            train=self._read(train=True),
            test=self._read(train=False),
            mean=self.mean or self._known.mean,
            std=self.std or self._known.std,
        )

    def _read(self, train: bool) -> Split:
        try:
            return self._known.read(self.root, train, False)
        except _UNREADABLE as error:
            if not self.download:
                raise self._error(f"damaged ({_brief(error)}); set data.download=true") from error
        try:
            with self._only_downloader():
                with suppress(*_UNREADABLE):  # another process may have downloaded it meanwhile
                    return self._known.read(self.root, train, False)
                return self._known.read(self.root, train, True)
        except _UNREADABLE as error:
            raise self._error(
                f"absent or damaged, and downloading it failed ({_brief(error)}); "
                "set data.root to its folder"
            ) from error

    @contextmanager
    def _only_downloader(self) -> Iterator[None]:
        """Wait until no other process downloads into ``root``; then keep the others waiting."""
        self.root.mkdir(parents=True, exist_ok=True)
        with (self.root / ".fedexp-download.lock").open("wb") as file:
            if try_lock(file) is False:
                LOGGER.info("data.root=%s: another process downloads; waiting for it", self.root)
                while try_lock(file) is False:
                    time.sleep(0.2)
            yield

    def _error(self, problem: str) -> InputError:
        """An error that names the dataset's folder, the problem and the remedies."""
        by_hand = self._known.by_hand.format(root=self.root)
        place = (self.root / self._known.files[0]).parent
        return InputError(
            f"data.root={self.root}: {self.name} in {place} is {problem}, or {by_hand}"
        )


def _brief(error: Exception) -> str:
    """The type and the message of an error, on one line."""
    return f"{type(error).__name__}: {' '.join(str(error).split())}"
