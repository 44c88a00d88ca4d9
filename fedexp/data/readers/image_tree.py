"""Find the paths, labels and split of the images in a folder, without opening an image."""

import os
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np

from fedexp.errors import InputError, readable

_TRAIN, _TEST = {"train", "training"}, {"test", "testing", "val", "valid", "validation"}
"""Names that people give to the folders of a split."""


@dataclass(frozen=True)
class ImageTree:
    """The images below a folder; the training images come first.

    Attributes:
        classes: the class names, sorted; their order is the label order.
        paths: [n] path of each image, relative to the folder.
        labels: [n] int64 class of each image.
        num_train: number of training images; n if there is no test/. The images after them are test
            images.
    """

    classes: tuple[str, ...]
    paths: list[str]
    labels: np.ndarray
    num_train: int


def find_images(root: Path) -> ImageTree:
    """Find the images in train/<class>/ and test/<class>/, or only train/<class>/, or <class>/.

    Raises:
        InputError: the folder ``root`` is missing or unreadable, or has another structure.
    """
    with readable():
        if not root.is_dir():
            raise InputError(f"data.root={root}: there is no such folder")
        has_train, has_test = ((root / name).is_dir() for name in ("train", "test"))
        base = root / "train" if has_train else root
        has_both = has_train and has_test
        if not has_both:
            _refuse_other_names(root)
        classes = _class_names(base)
        if len(classes) < 2:
            raise InputError(
                f"data.root={root}: {base} must hold a folder for each class, at least two; "
                f"it holds {', '.join(classes) or 'none'}"
            )
        if has_both:  # a class of the test images alone is refused by ``consistency``
            classes = tuple(sorted({*classes, *_class_names(root / "test")}))
        paths, labels = _scan(root, base, classes)
        if not has_both:
            return ImageTree(classes, paths, np.array(labels, dtype=np.int64), len(paths))
        test_paths, test_labels = _scan(root, root / "test", classes)
    if not test_paths:
        raise InputError(
            f"{root / 'test'}: holds no class folder; remove it to test on a share of train/ "
            "(data.test_fraction)"
        )
    all_labels = np.array(labels + test_labels, dtype=np.int64)
    return ImageTree(classes, paths + test_paths, all_labels, num_train=len(paths))


def _refuse_other_names(root: Path) -> None:
    """Raise InputError if the folder has a split under other names than train and test.

    Its parts would be taken for classes, or its test images would not be read.
    """
    names = _class_names(root)
    lower = {name.lower() for name in names}
    is_split = lower <= _TRAIN | _TEST and lower & _TRAIN and lower & _TEST
    if is_split or ("train" in names and lower & _TEST):
        raise InputError(
            f"data.root={root}: holds {', '.join(names)}; name the folders of training and test "
            "images train and test, and move others away"
        )


def _class_names(folder: Path) -> tuple[str, ...]:
    """Names of the visible folders in ``folder``, sorted."""
    entries = (path for path in folder.iterdir() if path.is_dir())
    names = sorted(path.name for path in entries if not path.name.startswith("."))
    for name in names:
        if os.fsencode(name).decode("utf-8", "replace") != name:
            raise InputError(f"{folder}: the name of the folder {name!a} is not in UTF-8")
    return tuple(names)


def _scan(root: Path, base: Path, classes: tuple[str, ...]) -> tuple[list[str], list[int]]:
    """Paths, relative to ``root``, and labels of all images in the class folders of ``base``."""
    paths: list[str] = []
    labels: list[int] = []
    for name in _class_names(base):
        found = images_below(root, base / name)
        if not found:
            raise InputError(
                f"data.root={root}: {base / name} is a class folder without images "
                f"({', '.join(_endings())})"
            )
        paths += found
        labels += [classes.index(name)] * len(found)
    return paths, labels


def images_below(root: Path, folder: Path) -> list[str]:
    """All visible image files in ``folder`` at any depth, as sorted paths relative to ``root``."""
    found: list[str] = []
    for parent, folders, names in os.walk(folder, onerror=_raise, followlinks=True):
        here = Path(parent).resolve()
        # Following a link to a parent folder would never end. Tools keep copies in hidden folders.
        folders[:] = [
            name
            for name in folders
            if name[0] != "." and not here.is_relative_to((here / name).resolve())
        ]
        below_root = Path(parent).relative_to(root).as_posix()
        visible = (name for name in names if not name.startswith("."))
        found += [f"{below_root}/{name}" for name in visible if name.lower().endswith(_endings())]
    return sorted(found)


@cache
def _endings() -> tuple[str, ...]:
    """The file name endings of images. torchvision, which is slow to import, is imported here."""
    from torchvision.datasets.folder import IMG_EXTENSIONS

    endings: tuple[str, ...] = IMG_EXTENSIONS
    return endings


def _raise(error: OSError) -> None:
    raise error
