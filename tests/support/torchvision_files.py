"""Tiny files in the formats of torchvision's datasets, two random samples in each."""

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import numpy as np
import pytest
import torchvision
from scipy.io import savemat
from torchvision.datasets import CIFAR10, SVHN

Name = Literal["cifar10", "cifar100", "fashion_mnist", "svhn"]
NAMES: tuple[Name, ...] = ("cifar10", "cifar100", "fashion_mnist", "svhn")
SHAPES = {"fashion_mnist": (1, 28, 28)}
COLOUR = (3, 32, 32)


def images(name: str, count: int, seed: int) -> np.ndarray:
    shape = (count, *SHAPES.get(name, COLOUR))
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)


def write_cifar(root: Path, folder: str, files: list[str], key: str, meta: tuple[str, str]) -> None:
    """One pickle a file: flattened rows in channel, height, width order."""
    (root / folder).mkdir(parents=True)
    for seed, file in enumerate(files):
        content = {"data": images("cifar10", 2, seed).reshape(2, -1), key: [seed % 10, 1]}
        (root / folder / file).write_bytes(pickle.dumps(content))
    (root / folder / meta[0]).write_bytes(pickle.dumps({meta[1]: ["a name"]}))


def write_cifar10(root: Path) -> None:
    files = [f"data_batch_{i}" for i in range(1, 6)] + ["test_batch"]
    write_cifar(root, "cifar-10-batches-py", files, "labels", ("batches.meta", "label_names"))


def write_cifar100(root: Path) -> None:
    files = ["train", "test"]
    write_cifar(root, "cifar-100-python", files, "fine_labels", ("meta", "fine_label_names"))


def write_fashion_mnist(root: Path) -> None:
    """IDX files: type 8 (unsigned byte), number of dimensions, sizes, content."""
    folder = root / "FashionMNIST" / "raw"
    folder.mkdir(parents=True)
    for seed, split in enumerate(("train", "t10k")):
        pixels = images("fashion_mnist", 2, seed)
        header = b"".join(size.to_bytes(4, "big") for size in (0x803, 2, 28, 28))
        (folder / f"{split}-images-idx3-ubyte").write_bytes(header + pixels.tobytes())
        header = b"".join(size.to_bytes(4, "big") for size in (0x801, 2))
        (folder / f"{split}-labels-idx1-ubyte").write_bytes(header + bytes([seed, 1]))


def write_svhn(root: Path) -> None:
    """MATLAB files: height, width, channel, sample; the digit 0 has label 10."""
    for seed, split in enumerate(("train", "test")):
        pixels = images("svhn", 2, seed).transpose(2, 3, 1, 0)
        label = np.array([[seed or 10], [1]], dtype=np.uint8)
        savemat(root / f"{split}_32x32.mat", {"X": pixels, "y": label})


WRITE: dict[Name, Callable[[Path], None]] = {
    "cifar10": write_cifar10,
    "cifar100": write_cifar100,
    "fashion_mnist": write_fashion_mnist,
    "svhn": write_svhn,
}


def accept_any_checksum(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tiny files pass for the real ones."""
    monkeypatch.setattr(CIFAR10, "_check_integrity", lambda self: True)
    monkeypatch.setattr(SVHN, "_check_integrity", lambda self: True)
    monkeypatch.setattr(torchvision.datasets.cifar, "check_integrity", lambda path, md5: True)
