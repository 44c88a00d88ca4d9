"""Tiny trees in the layouts of Tiny ImageNet, CIFAR-100 (for FC100) and Fed-ISIC2019."""

import csv
import pickle
from collections.abc import Callable
from pathlib import Path

import numpy as np
from PIL import Image

WNIDS = ("n03", "n01", "n02")
"""As in wnids.txt, which is not sorted."""

TRAIN, TEST = 6, 2
"""Images of each class of Tiny ImageNet."""


def write_tiny_imagenet(root: Path) -> None:
    """Three classes; every pixel of image i of the class nXX is 10 XX + i, in val/ 5 more.

    The first of n01 is grey. val/ takes turns through the classes of wnids.txt.
    """
    folder = root / "tiny-imagenet-200"
    for wnid in WNIDS:
        base = folder / "train" / wnid
        (base / "images").mkdir(parents=True)
        (base / f"{wnid}_boxes.txt").write_text(f"{wnid}_0.JPEG\t0\t10\t63\t58\n")
        for i in range(TRAIN):
            mode = "L" if (wnid, i) == ("n01", 0) else "RGB"
            _write(base / "images" / f"{wnid}_{i}.JPEG", 10 * int(wnid[1:]) + i, (64, 64), mode)
    (folder / "wnids.txt").write_text("\n".join(WNIDS) + "\n")
    (folder / "words.txt").write_text(
        "n01\tcrane\nn02\tgoldfish, Carassius auratus\nn03\tcrane\nn04\tnot in the set\n"
    )
    (folder / "val" / "images").mkdir(parents=True)
    rows = []
    for number in range(TEST * len(WNIDS)):
        wnid = WNIDS[number % len(WNIDS)]
        value = 10 * int(wnid[1:]) + 5 + number // len(WNIDS)
        _write(folder / "val" / "images" / f"val_{number}.JPEG", value, (64, 64))
        rows.append(f"val_{number}.JPEG\t{wnid}\t0\t32\t44\t62\n")
    (folder / "val" / "val_annotations.txt").write_text("".join(rows))
    (folder / "test" / "images").mkdir(parents=True)
    _write(folder / "test" / "images" / "test_0.JPEG", 255, (64, 64))


def write_all_of_cifar100(root: Path, train: int = 3, test: int = 1) -> None:
    """So many images of each of the 100 classes; random, but the first pixel is the label."""
    (root / "cifar-100-python").mkdir(parents=True)
    draw = np.random.default_rng(0)
    for name, count in (("train", train), ("test", test)):
        labels = np.tile(np.arange(100), count)
        pixels = draw.integers(0, 256, (len(labels), 3 * 32 * 32), dtype=np.uint8)
        pixels[:, 0] = labels
        content = {"data": pixels, "fine_labels": labels.tolist()}
        (root / "cifar-100-python" / name).write_bytes(pickle.dumps(content))
    meta = pickle.dumps({"fine_label_names": ["a name"]})
    (root / "cifar-100-python" / "meta").write_bytes(meta)


LESIONS = [
    # image, target, centre, fold, width, height
    ("ISIC_0000003", 1, 2, "train", 12, 8),
    ("ISIC_0000001", 7, 0, "test", 8, 10),
    ("ISIC_0000002_downsampled", 0, 0, "train", 8, 8),
    ("ISIC_0000004", 1, 1, "train", 16, 20),
    ("ISIC_0000005", 1, 1, "test", 8, 9),
    ("ISIC_0000006", 4, 3, "train", 8, 8),
    ("ISIC_0000007", 4, 4, "train", 8, 8),
    ("ISIC_0000008", 2, 5, "train", 8, 8),
    ("ISIC_0000009", 2, 5, "train", 8, 8),
]
"""As in train_test_split; every pixel of an image is ten times its number here, from 0."""


def write_fed_isic(root: Path) -> None:
    """Below the folder fed_isic2019."""
    folder = root / "fed_isic2019" / "ISIC_2019_Training_Input_preprocessed"
    folder.mkdir(parents=True)
    with (folder.parent / "train_test_split").open("w", newline="") as stream:
        writer = csv.writer(stream)
        writer.writerow(["image", "MEL", "NV", "target", "center", "fold", "fold2"])
        for number, (image, target, center, fold, width, height) in enumerate(LESIONS):
            row = [image, "0.0", "1.0", target, center, fold, f"{fold}_{center}"]
            writer.writerow(row)
            _write(folder / f"{image}.jpg", 10 * number, (width, height))


def _write(path: Path, value: int, size: tuple[int, int], mode: str = "RGB") -> None:
    """One grey value, which JPEG keeps exactly."""
    Image.new(mode, size, value if mode == "L" else (value,) * 3).save(path, quality=100)


IMAGE_SETS: dict[str, Callable[[Path], None]] = {
    "tiny_imagenet": write_tiny_imagenet,
    "fc100": write_all_of_cifar100,
    "fed_isic": write_fed_isic,
}
