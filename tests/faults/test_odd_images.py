"""Odd image folders: each trains on a plain reading of it, or is refused in one line."""

import os
import shutil
import struct
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import pytest
from PIL import Image
from support.odd_data import Outcomes, train_one_round

Write = Callable[[Path], object]

WIDTH, HEIGHT = 6, 5


class Odd(NamedTuple):
    """A folder and its outcome.

    Attributes:
        write: writes it.
        refused: regular expression of the error line; None if it trains.
        keys: keys of ``data``.
    """

    write: Write
    refused: str | None = None
    keys: Mapping[str, Any] = MappingProxyType({})


def pixels(number: int, mode: str = "RGB", size: tuple[int, int] = (WIDTH, HEIGHT)) -> Image.Image:
    """Random pixels of any mode."""
    draw = np.random.default_rng(number)
    values = draw.integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)
    if mode in ("I;16", "I;16B", "I", "F"):
        kind = {"I;16": "<u2", "I;16B": ">u2", "I": "<i4", "F": "<f4"}[mode]
        return Image.frombytes(mode, size, (values[..., 0].astype(kind) * 257).tobytes())
    image = Image.fromarray(values)
    return image.quantize(8) if mode == "P" else image.convert(mode)


def tree(suffix: str = ".png", mode: str = "RGB", **options: Any) -> Write:
    """train/ and test/, each with three cats and three dogs."""

    def write(root: Path) -> None:
        for number in range(12):
            name = f"{('train', 'test')[number % 2]}/{('cat', 'dog')[number // 2 % 2]}/{number}"
            path = root / f"{name}{suffix}"
            path.parent.mkdir(parents=True, exist_ok=True)
            pixels(number, mode).save(path, **options)

    return write


def both(*writes: Write) -> Write:
    """All of them, one after another."""

    def write(root: Path) -> None:
        for each in writes:
            each(root)

    return write


def at(*names: str, image: Image.Image | bytes | None = None) -> Write:
    """The image, or random pixels, in these files."""

    def write(root: Path) -> None:
        for number, name in enumerate(names):
            path = root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            if isinstance(image, bytes):
                path.write_bytes(image)
            else:
                (image or pixels(number)).save(path)

    return write


def extra(name: str, image: Image.Image | bytes | None = None) -> Write:
    """The plain folder and one more file."""
    return both(tree(), at(name, image=image))


def changed(change: Write) -> Write:
    """The plain folder after a change."""
    return both(tree(), change)


def cut(name: str, suffix: str, keep: float) -> Write:
    def write(root: Path) -> None:
        tree(suffix)(root)
        path = root / f"{name}{suffix}"
        content = path.read_bytes()
        path.write_bytes(content[: int(keep * len(content))])

    return write


def classes(*names: str) -> Write:
    """train/ and test/ with these classes, two images of each."""
    paths = [f"{split}/{name}" for split in ("train", "test") for name in names]
    return at(*(f"{path}/{number}.png" for path in paths for number in "01"))


def huge_png() -> bytes:
    """A PNG that claims 100,000 x 100,000 pixels."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        check = zlib.crc32(kind + content)
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", check)

    header = struct.pack(">IIBBBBB", 100_000, 100_000, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", b"") + chunk(b"IEND", b"")


def without_test(root: Path) -> None:
    shutil.rmtree(root / "test")


FOUR = [f"{split}/{name}/a.png" for split in ("train", "test") for name in ("cat", "dog")]

EXIF = Image.Exif()
EXIF[0x0112] = 6  # turned by a quarter; torchvision does not turn it back, either

TRAINED = {
    "plain": Odd(tree()),
    **{f"as {suffix}": Odd(tree(suffix)) for suffix in (".jpg", ".bmp", ".ppm", ".webp", ".tiff")},
    "a suffix in capitals": Odd(tree(".PNG")),
    "a suffix of another format": Odd(tree(".png", format="JPEG")),
    **{f"mode {mode}": Odd(tree(mode=mode)) for mode in ("1", "L", "LA", "P", "RGBA", "I;16")},
    "mode CMYK": Odd(tree(".jpg", mode="CMYK")),
    "16 bits, big endian": Odd(tree(".tif", mode="I;16B")),
    "a palette with transparency": Odd(tree(mode="P", transparency=0)),
    "grey among colours": Odd(extra("train/cat/a.png", pixels(1, "L"))),
    "colours made grey": Odd(tree(), keys={"channels": 1}),
    "interlaced": Odd(tree(interlace=1)),
    "several pages": Odd(tree(".tiff", save_all=True, append_images=[pixels(99)])),
    "turned by a camera": Odd(tree(".jpg", exif=EXIF)),
    "one pixel": Odd(tree(), keys={"image_size": 1}),
    "several sizes": Odd(extra("train/cat/a.png", pixels(1, size=(9, 4))), keys={"image_size": 4}),
    "one colour": Odd(at(*FOUR, image=Image.new("RGB", (4, 4), "red"))),
    "one image of each class": Odd(at(*FOUR)),
    "30 classes": Odd(classes(*(f"c{number}" for number in range(30)))),
    "deep folders": Odd(extra("train/cat/a/b/c/d.png")),
    "a folder called like an image": Odd(extra("train/cat/a.png/b.png")),
    "hidden files": Odd(extra("train/cat/.a.png", b"not an image")),
    "hidden folders": Odd(changed(lambda root: (root / "train/.ipynb_checkpoints").mkdir())),
    "copies in a hidden folder": Odd(extra("train/cat/.ipynb_checkpoints/a-checkpoint.png")),
    "other files": Odd(extra("train/cat/notes.txt", b"about cats")),
    "files beside the classes": Odd(extra("train/a.png")),
    "unicode names": Odd(classes("größe", "大", "🙂")),
    "names with signs": Odd(classes("a, b", "$x_1$", 'it\'s "it"', "%s {} \\n", "#1")),
    "a name with a line feed": Odd(classes("a\nb", "c")),
    "a link to an image": Odd(
        changed(lambda root: (root / "train/cat/a.png").symlink_to(root / "train/dog/2.png"))
    ),
    "a link to a folder": Odd(
        changed(lambda root: (root / "train/cat/more").symlink_to(root / "test/cat"))
    ),
    "a class that is a link": Odd(
        changed(
            lambda root: [
                (root / split / "fox").symlink_to(root / split / "cat")
                for split in ("train", "test")
            ]
        )
    ),
    "a link to a parent": Odd(
        changed(lambda root: (root / "train/cat/loop").symlink_to(root / "train"))
    ),
}

REFUSED = {
    "absent": Odd(lambda root: None, "there is no such folder"),
    "a file": Odd(lambda root: root.write_bytes(b""), "there is no such folder"),
    "empty": Odd(lambda root: root.mkdir(), "must hold a folder for each class, at least two"),
    "one class": Odd(
        classes("cat"), "must hold a folder for each class, at least two; it holds cat"
    ),
    "an empty class": Odd(
        changed(lambda root: (root / "train/fox").mkdir()), "train/fox is a class folder without im"
    ),
    "a class of another format": Odd(
        extra("train/fox/a.gif"), "train/fox is a class folder without images"
    ),
    "a class that is only tested": Odd(
        extra("test/fox/a.png"), "test/fox/a.png: the class 'fox' is not in the train"
    ),
    "no test images": Odd(
        changed(lambda root: [without_test(root), (root / "test").mkdir()]), "holds no class folder"
    ),
    "too few to split": Odd(
        both(at(*FOUR), without_test),
        "data.test_fraction=0.2: cannot split 2 samples of 2 classes",
    ),
    "several sizes": Odd(
        extra("train/cat/a.png", pixels(1, size=(9, 4))), "cat/a.png: is 9x4, others are 6x5"
    ),
    "no bytes": Odd(extra("train/cat/a.png", b""), "cat/a.png: cannot be read as an image"),
    "text": Odd(extra("train/cat/a.png", b"a cat"), "cat/a.png: cannot be read as an image"),
    "a PNG cut short": Odd(cut("train/cat/4", ".png", 0.7), "4.png: cannot be read as an image"),
    "a JPEG cut short": Odd(cut("train/cat/4", ".jpg", 0.7), "4.jpg: cannot be read as an image"),
    "a TIFF cut short": Odd(cut("test/dog/3", ".tiff", 0.5), "3.tiff: cannot be read as an image"),
    "a header only": Odd(cut("train/dog/2", ".bmp", 0.3), "2.bmp: cannot be read as an image"),
    "a lie about its size": Odd(
        extra("train/cat/a.png", huge_png()), "cat/a.png: cannot be read as an image"
    ),
    "32 bits": Odd(extra("train/cat/a.tif", pixels(1, "I")), "a.tif: cannot be read .* 32 bits"),
    "floats": Odd(extra("train/cat/a.tif", pixels(1, "F")), "a.tif: cannot be read .* 32 bits"),
    "a link to nothing": Odd(
        changed(lambda root: (root / "train/cat/z.png").symlink_to(root / "nothing")),
        "cat/z.png: cannot be read",
    ),
    "a first link to nothing": Odd(
        changed(lambda root: (root / "train/cat/!.png").symlink_to(root / "nothing")),
        "cat/!.png: cannot be read",
    ),
    "a link to itself": Odd(
        changed(lambda root: (root / "train/cat/z.png").symlink_to(root / "train/cat/z.png")),
        "cat/z.png: cannot be read",
    ),
    "a pipe": Odd(
        changed(lambda root: os.mkfifo(root / "train/cat/z.png")), "z.png: .* not a regular file"
    ),
    "a first pipe": Odd(
        changed(lambda root: os.mkfifo(root / "train/cat/!.png")), "!.png: .* not a regular file"
    ),
    "a name in no encoding": Odd(
        changed(lambda root: (root / "train" / os.fsdecode(b"a\xff")).mkdir()), "is not in UTF-8"
    ),
    "users that are not found": Odd(
        tree(), "finds no user in train/cat/0.png", keys={"user_pattern": "(u[0-9]+)_"}
    ),
}


def read_plainly(folder: Path, keys: Mapping[str, Any]) -> tuple[np.ndarray, list[str]]:
    """uint8 images [n, C, H, W] and class names of one split, by Pillow and loops."""
    found = [
        (name, path)
        for name in sorted(path.name for path in folder.iterdir() if path.is_dir())
        if not name.startswith(".")
        for path in sorted(files_below(folder / name), key=Path.as_posix)
    ]
    images = []
    for _, path in found:
        with Image.open(path) as image:
            if image.mode.startswith("I;16"):
                image = Image.fromarray((np.array(image) // 256).astype(np.uint8))
            image = image.convert("L" if keys.get("channels") == 1 else "RGB")
            if size := keys.get("image_size"):
                image = image.resize((size, size), Image.Resampling.BILINEAR)
            values = np.array(image)
            images.append(values[None] if values.ndim == 2 else values.transpose(2, 0, 1))
    return np.stack(images), [name for name, _ in found]


def files_below(folder: Path) -> list[Path]:
    """All visible images; a link to a folder above is not followed."""
    found = []
    for path in folder.iterdir():
        if path.name[0] == ".":
            continue
        if path.is_dir() and path.resolve() not in folder.resolve().parents:
            found += files_below(path)
        elif path.is_file() and path.suffix != ".txt":
            found.append(path)
    return found


@pytest.mark.matrix
@pytest.mark.parametrize(
    ("kind", "name"),
    [("trained", each) for each in TRAINED] + [("refused", each) for each in REFUSED],
)
def test_an_odd_image_folder_trains_or_is_refused(
    kind: str, name: str, tmp_path: Path, outcomes: Outcomes
) -> None:
    odd = {"trained": TRAINED, "refused": REFUSED}[kind][name]
    root = tmp_path / "odd"
    odd.write(root)
    keys = {"root": str(root)} | dict(odd.keys)
    options = ("data=image_folder", "data.root=?", "model=mlp", "model.hidden=[8]")
    data = outcomes.of(
        lambda: train_one_round(*options, cache=tmp_path / "cache", **keys), odd.refused
    )
    if data is None:
        return
    for split, samples in (("train", data.train), ("test", data.test)):
        images, names = read_plainly(root / split, odd.keys)
        assert np.array_equal(samples.inputs.numpy(), images)
        assert [data.description.classes[label] for label in samples.labels] == names
