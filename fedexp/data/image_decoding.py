"""Decode image files in threads into one uint8 array, and cache the array."""

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
from PIL import Image
from pydantic import Field

from fedexp.data.cache import Images, cached_images, fingerprint
from fedexp.errors import InputError, readable

PROGRESS_ABOVE = 2000
"""Number of images above which a progress bar is shown."""

ImageSize = Annotated[int, Field(gt=0, le=4096)]
"""Height and width of images in pixels; the bound catches typing mistakes."""

CHUNK = 100
"""Number of images that a thread decodes in one task."""

SMALL = 64 * 64
"""Images of at most this many pixels are decoded in one thread, because more threads wait for
Python's lock."""

_MODES = {1: "L", 3: "RGB"}


@dataclass(frozen=True)
class Fit:
    """The rule that brings all images to one height and width.

    Attributes:
        kind: ``same`` refuses an image of another size. ``stretch`` resizes each image to the
            height and width. ``centre`` scales each image until its shorter side has ``short_side``
            pixels, then crops the centre.
        short_side: pixels of the shorter side for ``centre``; an image that already has this size
            is not resampled.
    """

    kind: Literal["same", "stretch", "centre"]
    short_side: int = 0


SAME_SIZE = Fit("same")


def decoded(
    root: Path, paths: Sequence[str], shape: tuple[int, ...], fit: Fit, cache: Path
) -> Images:
    """Decode the images at ``paths`` [n], relative to ``root``, into one uint8 array [n, *shape].

    The array is cached in ``cache``/images. The name of its file is a hash of the root, the shape,
    the fit, and the name, size and time of change of each image file.

    Args:
        root: the folder of the files.
        paths: the files.
        shape: [channels, height, width] into which each image is converted.
        fit: the rule for an image of another size.
        cache: the folder of the cache.

    Raises:
        InputError: an image is missing or damaged, or has another size and the fit is ``same``.
    """
    state: list[object] = [root.resolve(), shape, fit]
    with readable():
        for path in paths:
            status = os.stat(os.path.join(root, path))
            state.append((path, status.st_size, status.st_mtime_ns))

    def read(index: int) -> Images:
        path = root / paths[index]
        with opened(path) as image:
            return fitted(image, shape, fit, path)

    file = cache / "images" / f"{fingerprint(*state)}.npy"
    return cached_images(
        file, (len(paths), *shape), lambda images: fill_in_threads(images, fit, read)
    )


def fill_in_threads(images: Images, fit: Fit, read: Callable[[int], Images]) -> None:
    """Set image i of ``images`` [n, channels, height, width] to ``read(i)``, in several threads."""
    from rich.console import Console  # slow to import
    from rich.progress import track

    def decode_some(chunk: range) -> None:
        for index in chunk:
            images[index] = read(index)

    chunks = [
        range(start, min(start + CHUNK, len(images))) for start in range(0, len(images), CHUNK)
    ]
    small = fit.kind == "same" and images.shape[2] * images.shape[3] <= SMALL
    with ThreadPoolExecutor(max_workers=1 if small else os.cpu_count()) as pool:
        for _ in track(
            pool.map(decode_some, chunks),
            description="Decoding images",
            total=len(chunks),
            console=Console(stderr=True),
            transient=True,
            disable=len(images) <= PROGRESS_ABOVE,
        ):
            pass


def fitted(image: Image.Image, shape: tuple[int, ...], fit: Fit, name: object) -> Images:
    """Convert an image to uint8 of ``shape`` [channels, height, width]; errors use ``name``."""
    channels, height, width = shape
    if fit.kind == "same" and image.size != (width, height):
        raise InputError(
            f"{name}: is {image.width}x{image.height}, others are {width}x{height}; "
            "set data.image_size=... to resize all of them"
        )
    pixels = _eight_bits(image).convert(_MODES[channels])
    if fit.kind == "centre":
        pixels = _cut_centre(pixels, width, height, fit.short_side)
    else:
        pixels = pixels.resize((width, height), Image.Resampling.BILINEAR)
    return np.asarray(pixels).reshape(height, width, channels).transpose(2, 0, 1)


def _cut_centre(image: Image.Image, width: int, height: int, short_side: int) -> Image.Image:
    """Scale the image to a shorter side of ``short_side``, then crop its centre."""
    shorter = min(image.size)
    if shorter != short_side:
        scaled = [max(short_side, round(side * short_side / shorter)) for side in image.size]
        image = image.resize((scaled[0], scaled[1]), Image.Resampling.BILINEAR)
    left, top = (image.width - width) // 2, (image.height - height) // 2
    return image.crop((left, top, left + width, top + height))


@contextmanager
def opened(path: Path) -> Iterator[Image.Image]:
    """Open the image at ``path``. Errors while the image is read name the path."""
    with named_in_errors(path):
        if path.exists() and not path.is_file():  # a pipe could be read without end
            raise ValueError("is not a regular file")
        with Image.open(path) as image:
            yield image


@contextmanager
def named_in_errors(name: object) -> Iterator[None]:
    """If an image cannot be read, raise an InputError with its ``name``."""
    try:
        yield
    except InputError:
        raise
    except Exception as error:  # Pillow's decoders raise many kinds of errors
        raise InputError(f"{name}: cannot be read as an image ({error})") from error


def _eight_bits(image: Image.Image) -> Image.Image:
    """Convert a 16-bit image to 8 bits; Pillow would turn every value above 255 into white."""
    if image.mode.startswith("I;16"):
        return Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
    if image.mode in ("I", "F"):
        raise ValueError("pixels of 32 bits, which have no known range")
    return image
