"""Images in class folders, decoded once into one uint8 tensor."""

import hashlib
import os
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
import torch
from PIL import Image
from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt
from rich.console import Console
from rich.progress import track
from sklearn.model_selection import train_test_split
from torchvision.datasets.folder import IMG_EXTENSIONS

from fedexp.core.description import Description
from fedexp.data.dataset import Dataset, Source, Split, check_constants
from fedexp.data.tensor_cache import Images, cached_array
from fedexp.errors import InputError

PROGRESS_ABOVE = 2000
"""Fewer images are decoded before a progress bar could be read."""

CHUNK = 100
"""Images that a thread decodes in one go."""

SMALL = 64 * 64
"""Images of at most so many pixels are mostly Python to decode: threads would only wait in turn."""

_MODES = {1: "L", 3: "RGB"}


@dataclass(frozen=True)
class _Tree:
    """Which images there are: paths relative to root, the ``num_train`` training images first."""

    classes: tuple[str, ...]
    paths: list[str]
    labels: np.ndarray
    num_train: int


class ImageFolder(Source):
    """Any tree train/<class>/ + test/<class>/; images may lie at any depth below their class.

    With only train/<class>/ or <class>/ a stratified share of each class becomes the test split.

    Args:
        root: the tree; ``~`` is expanded. Nothing is written there.
        image_size: every image is resized (bilinear, without cropping) to this height and width;
            None if all images have one size already.
        channels: 3 for colour, 1 for grey; every image is converted.
        test_fraction: share of each class that is for testing, where there is no test/ folder.
        split_seed: seed of that split.
        user_pattern: regular expression with one group, searched for in each path relative to
            ``root`` ("train/cat/anna_01.png"): the group is the user of the natural partition.
        mean: of each channel, of inputs in [0, 1]; None measures it on the training images.
        std: likewise.

    Raises:
        InputError: from the constructor for arguments that cannot work, from ``describe`` for a
            tree that cannot, from ``load`` for an image that is damaged or has another size.
    """

    def __init__(
        self,
        root: Path,
        image_size: PositiveInt | None,
        channels: Literal[1, 3],
        test_fraction: Annotated[float, Field(gt=0, lt=1)],
        split_seed: NonNegativeInt,
        user_pattern: str | None,
        mean: tuple[float, ...] | None,
        std: tuple[PositiveFloat, ...] | None,
    ) -> None:
        check_constants(mean, std, channels)
        self.root = root.expanduser()
        self.image_size = image_size
        self.channels = channels
        self.test_fraction = test_fraction
        self.split_seed = split_seed
        self.user_pattern = None if user_pattern is None else _compile(user_pattern)
        self.mean = mean
        self.std = std

    def describe(self) -> Description:
        """Shape and classes, from the folders and the header of one image."""
        height, width = self._image_shape
        shape = (self.channels, height, width)
        return Description(self.root.resolve().name, shape, self._tree.classes)

    def load(self, cache: Path) -> Dataset:
        """The dataset; the decoded images are kept in ``cache``/images."""
        description, tree = self.describe(), self._tree
        users = self._users()
        shape = (len(tree.paths), *description.input_shape)
        images = cached_array(cache / "images" / self._cache_name(), shape, self._decode_all)
        labels = torch.from_numpy(tree.labels)
        train, test = (
            Split(
                torch.from_numpy(images[part]), labels[part], None if users is None else users[part]
            )
            for part in (slice(tree.num_train), slice(tree.num_train, None))
        )
        mean, std = self._normalisation(images[: tree.num_train])
        return Dataset(description, train, test, mean, std)

    @cached_property
    def _tree(self) -> _Tree:
        with _readable():
            return self._find()

    def _find(self) -> _Tree:
        if not self.root.is_dir():
            raise InputError(f"data.root={self.root}: there is no such folder")
        has_train, has_test = ((self.root / name).is_dir() for name in ("train", "test"))
        base = self.root / "train" if has_train else self.root
        classes = _class_names(base)
        if len(classes) < 2:
            raise InputError(
                f"data.root={self.root}: {base} must hold a folder for each class, at least two; "
                f"it holds {', '.join(classes) or 'none'}"
            )
        paths, labels = self._scan(base, classes)
        if not (has_train and has_test):
            return self._split(classes, paths, labels)
        test_paths, test_labels = self._scan(self.root / "test", classes)
        if not test_paths:
            raise InputError(
                f"{self.root / 'test'}: holds no class folder; without it, data.test_fraction of "
                "train/ would be for testing"
            )
        all_labels = np.array(labels + test_labels, dtype=np.int64)
        return _Tree(classes, paths + test_paths, all_labels, num_train=len(paths))

    def _scan(self, base: Path, classes: tuple[str, ...]) -> tuple[list[str], list[int]]:
        """Paths relative to root and labels of all images in the class folders of ``base``."""
        if unknown := sorted(set(_class_names(base)) - set(classes)):
            raise InputError(f"{base}: has classes that train/ has not: {', '.join(unknown)}")
        paths: list[str] = []
        labels: list[int] = []
        for name in _class_names(base):
            found = self._images_below(base / name)
            if not found:
                raise InputError(
                    f"{base / name}: a class folder without images ({', '.join(IMG_EXTENSIONS)})"
                )
            paths += found
            labels += [classes.index(name)] * len(found)
        return paths, labels

    def _images_below(self, folder: Path) -> list[str]:
        """All visible image files at any depth, as sorted paths relative to root."""
        found: list[str] = []
        for parent, folders, names in os.walk(folder, onerror=_raise, followlinks=True):
            here = Path(parent).resolve()
            folders[:] = [
                name for name in folders if not here.is_relative_to((here / name).resolve())
            ]
            below_root = Path(parent).relative_to(self.root).as_posix()
            visible = (name for name in names if not name.startswith("."))
            found += [
                f"{below_root}/{name}" for name in visible if name.lower().endswith(IMG_EXTENSIONS)
            ]
        return sorted(found)

    def _split(self, classes: tuple[str, ...], paths: list[str], labels: list[int]) -> _Tree:
        """A stratified split of one tree, of its paths: so each split is a slice of the tensor."""
        try:
            train, test = train_test_split(
                np.arange(len(paths)),
                test_size=self.test_fraction,
                stratify=labels,
                random_state=self.split_seed,
            )
        except ValueError as error:
            raise InputError(
                f"data.test_fraction={self.test_fraction}: cannot split {len(paths)} images "
                f"of {len(classes)} classes ({error})"
            ) from error
        order = np.concatenate([np.sort(train), np.sort(test)])
        ordered = np.array(labels, dtype=np.int64)[order]
        return _Tree(classes, [paths[i] for i in order], ordered, num_train=len(train))

    @cached_property
    def _image_shape(self) -> tuple[int, int]:
        """Height and width of every image."""
        if self.image_size is not None:
            return self.image_size, self.image_size
        with _opened(self.root / self._tree.paths[0]) as image:
            return image.height, image.width

    def _users(self) -> np.ndarray | None:
        """Who each image came from, [n] strings, or None without a pattern."""
        if self.user_pattern is None:
            return None
        matches = [self.user_pattern.search(path) for path in self._tree.paths]
        for path, match in zip(self._tree.paths, matches, strict=True):
            if match is None or match[1] is None:
                raise InputError(
                    f"data.user_pattern={self.user_pattern.pattern}: finds no user in {path}"
                )
        return np.array([match[1] for match in matches if match])

    def _cache_name(self) -> str:
        """Changes with anything that the decoded tensor depends on."""
        state: list[object] = [self.root.resolve(), self.image_size, self.channels]
        with _readable():
            for path in self._tree.paths:
                status = os.stat(os.path.join(self.root, path))
                state.append((path, status.st_size, status.st_mtime_ns))
        digest = hashlib.blake2b(repr(state).encode(), digest_size=16).hexdigest()
        return f"{digest}.npy"

    def _decode_all(self, images: Images) -> None:
        """Fill [n, C, H, W]."""

        def decode(chunk: range) -> None:
            for index in chunk:
                images[index] = self._decode(self.root / self._tree.paths[index])

        chunks = [
            range(start, min(start + CHUNK, len(images))) for start in range(0, len(images), CHUNK)
        ]
        height, width = self._image_shape
        small = self.image_size is None and height * width <= SMALL
        with ThreadPoolExecutor(max_workers=1 if small else os.cpu_count()) as pool:
            for _ in track(
                pool.map(decode, chunks),
                description="Decoding images",
                total=len(chunks),
                console=Console(stderr=True),
                transient=True,
                disable=len(images) <= PROGRESS_ABOVE,
            ):
                pass

    def _decode(self, path: Path) -> Images:
        """One image as uint8 [C, H, W]."""
        height, width = self._image_shape
        with _opened(path) as image:
            if self.image_size is None and image.size != (width, height):
                raise InputError(
                    f"{path}: is {image.width}x{image.height}, others are {width}x{height}; "
                    "set data.image_size=... to resize all of them"
                )
            pixels = _eight_bits(image).convert(_MODES[self.channels])
        resized = pixels.resize((width, height), Image.Resampling.BILINEAR)
        return np.asarray(resized).reshape(height, width, self.channels).transpose(2, 0, 1)

    def _normalisation(self, train: Images) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """The given constants of each channel, or those of the training images."""
        if self.mean is not None and self.std is not None:
            return self.mean, self.std
        mean, std = channel_statistics(train)
        return self.mean or mean, self.std or std


def channel_statistics(images: Images) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation of each channel of uint8 images [n, C, H, W], scaled to [0, 1].

    A channel that never varies gets the standard deviation 1, so that it can be divided by.
    """
    counts = np.zeros((images.shape[1], 256), dtype=np.int64)
    for start in range(0, len(images), 1000):  # the images may be larger than the memory
        for channel, count in enumerate(counts):
            count += np.bincount(images[start : start + 1000, channel].ravel(), minlength=256)
    values = np.arange(256) / 255
    shares = counts / counts.sum(axis=1, keepdims=True)
    mean = shares @ values
    std = np.sqrt((shares * (values - mean[:, None]) ** 2).sum(axis=1))
    return tuple(mean.tolist()), tuple(np.where(std > 0, std, 1.0).tolist())


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


def _class_names(folder: Path) -> tuple[str, ...]:
    """Names of the visible folders in ``folder``, sorted."""
    entries = (path for path in folder.iterdir() if path.is_dir())
    return tuple(sorted(path.name for path in entries if not path.name.startswith(".")))


def _eight_bits(image: Image.Image) -> Image.Image:
    """The image with 8 bits a channel: of more, Pillow would make white whatever is above 255."""
    if image.mode.startswith("I;16"):
        return Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
    if image.mode in ("I", "F"):
        raise ValueError("pixels of 32 bits, which have no known range")
    return image


def _raise(error: OSError) -> None:
    raise error


@contextmanager
def _readable() -> Iterator[None]:
    """A folder or a file that cannot be looked at is one line."""
    try:
        yield
    except OSError as error:
        raise InputError(f"{error.filename}: cannot be read ({error.strerror})") from error


@contextmanager
def _opened(path: Path) -> Iterator[Image.Image]:
    """The image; whatever goes wrong while it is read names its path."""
    try:
        with Image.open(path) as image:
            yield image
    except InputError:
        raise
    except Exception as error:  # Pillow's decoders raise many kinds
        raise InputError(f"{path}: cannot be read as an image ({error})") from error
