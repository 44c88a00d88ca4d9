"""Image files decoded into one uint8 array, in threads."""

import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from PIL import Image
from rich.console import Console
from rich.progress import track

from fedexp.data.tensor_cache import Images
from fedexp.errors import InputError

PROGRESS_ABOVE = 2000
"""Fewer images are decoded before a progress bar could be read."""

CHUNK = 100
"""Images that a thread decodes in one go."""

SMALL = 64 * 64
"""Images of at most so many pixels are mostly Python to decode: threads would only wait in turn."""

_MODES = {1: "L", 3: "RGB"}


def decode_all(paths: Sequence[Path], images: Images, resize: bool) -> None:
    """Fill ``images`` [n, channels, height, width] with the images at ``paths`` [n].

    Args:
        paths: the files.
        images: the array; its shape says into what the images are converted.
        resize: whether images of other sizes are resized or an error.

    Raises:
        InputError: an image is damaged, or has another size and ``resize`` is false.
    """
    shape = images.shape[1:]

    def decode_some(chunk: range) -> None:
        for index in chunk:
            images[index] = decode(paths[index], shape, resize)

    chunks = [
        range(start, min(start + CHUNK, len(images))) for start in range(0, len(images), CHUNK)
    ]
    small = not resize and shape[1] * shape[2] <= SMALL
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


def decode(path: Path, shape: tuple[int, ...], resize: bool) -> Images:
    """One image as uint8 [channels, height, width], which is ``shape``."""
    channels, height, width = shape
    with opened(path) as image:
        if not resize and image.size != (width, height):
            raise InputError(
                f"{path}: is {image.width}x{image.height}, others are {width}x{height}; "
                "set data.image_size=... to resize all of them"
            )
        pixels = _eight_bits(image).convert(_MODES[channels])
    resized = pixels.resize((width, height), Image.Resampling.BILINEAR)
    return np.asarray(resized).reshape(height, width, channels).transpose(2, 0, 1)


@contextmanager
def opened(path: Path) -> Iterator[Image.Image]:
    """The image; an error while it is read names its path."""
    try:
        with Image.open(path) as image:
            yield image
    except InputError:
        raise
    except Exception as error:  # Pillow's decoders raise many kinds
        raise InputError(f"{path}: cannot be read as an image ({error})") from error


def _eight_bits(image: Image.Image) -> Image.Image:
    """The image with 8 bits a channel: of more, Pillow would make white whatever is above 255."""
    if image.mode.startswith("I;16"):
        return Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
    if image.mode in ("I", "F"):
        raise ValueError("pixels of 32 bits, which have no known range")
    return image
