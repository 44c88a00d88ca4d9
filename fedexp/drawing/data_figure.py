"""Figures that are saved with the numbers that they show, and conversion of figures to pixels.

The figures are made without pyplot, so they need no display and no global state.
"""

import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary
from zipfile import ZIP_DEFLATED, ZIP_STORED, BadZipFile, ZipFile

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from numpy.typing import NDArray
from PIL import Image
from PIL.PngImagePlugin import PngInfo
from torch import Tensor

from fedexp.drawing.style import LAYOUT, PlainFigure

Arrays = Mapping[str, NDArray[Any] | Sequence[str]]
"""Name of an array -> its content: numbers or texts."""

LARGEST = 2**28
"""Largest size of a file's arrays in bytes: enough for 5,000 x 5,000 classes or 10^6 clients."""
_PACKED = (ZIP_STORED, ZIP_DEFLATED)
"""How a file's arrays are packed. The zip format's other ways unpack without a bound in memory."""
_TITLE = "Title"
"""Keyword of a PNG file's title."""
_DRAWN: WeakKeyDictionary[Figure, NDArray[np.uint8]] = WeakKeyDictionary()
"""Figure -> its pixels, so that several trackers draw a figure only once."""


class DataFigure(PlainFigure):
    """A figure with the numbers that it shows.

    A run saves them next to the figure's file with ``save_numbers``. A report reads them to compare
    runs.

    Args:
        data: name -> array; a list of texts becomes an array of strings.
        size: width and height in inches; None for Matplotlib's default.
    """

    def __init__(self, data: Arrays, size: tuple[float, float] | None = None) -> None:
        super().__init__(figsize=size, **LAYOUT)
        self.data = data


def columns(**tensors: Tensor) -> dict[str, NDArray[Any]]:
    """Convert tensors to arrays, for the argument ``data`` of ``DataFigure``."""
    return {name: tensor.cpu().numpy() for name, tensor in tensors.items()}


def save_numbers(path: Path, data: Arrays) -> None:
    """Write arrays [n] of one length as columns of a ``.csv`` file, any others as ``.npz`` file.

    This ending is added to ``path``.
    """
    arrays: dict[str, Any] = {name: np.asarray(values) for name, values in data.items()}
    shapes = {array.shape for array in arrays.values()}
    if len(shapes) == 1 and all(len(shape) == 1 for shape in shapes):
        import pandas as pd  # slow to import; not every run has such columns

        pd.DataFrame(arrays).to_csv(path.with_name(f"{path.name}.csv"), index=False)
    else:
        np.savez_compressed(path.with_name(f"{path.name}.npz"), **arrays)


def read_numbers(path: Path) -> dict[str, NDArray[Any]]:
    """Read a file that ``save_numbers`` wrote, ``.csv`` or ``.npz``.

    Raises:
        OSError, ValueError: the file is missing, damaged or too large.
    """
    if path.suffix == ".csv":
        import pandas as pd

        _check_size(path.stat().st_size)
        table = pd.read_csv(path)
        return {str(name): table[name].to_numpy() for name in table.columns}
    found: dict[str, NDArray[Any]] = {}
    try:
        with ZipFile(path) as archive:
            members = archive.infolist()
            if any(each.compress_type not in _PACKED for each in members):
                raise ValueError("is packed in an unknown way")
            _check_size(sum(each.file_size for each in members))
            for name in archive.namelist():
                with archive.open(name) as file:  # gives no more than the checked size
                    found[name.removesuffix(".npy")] = np.lib.format.read_array(file)
    except (
        *(BadZipFile, EOFError, NotImplementedError, zlib.error),
        *(MemoryError, OverflowError, TypeError),  # a header declares an odd shape
    ) as error:
        raise ValueError(str(error) or "it is cut off") from error
    return found


def _check_size(size: int) -> None:
    if size > LARGEST:
        raise ValueError(f"has {size / 2**20:,.0f} MiB, more than {LARGEST / 2**20:.0f} MiB")


def pixels(figure: Figure) -> NDArray[np.uint8]:
    """The figure as an RGB image [height, width, 3]; it is drawn only the first time."""
    # ``Figure.savefig`` would draw everything once more, only to compute the margins.
    if figure not in _DRAWN:
        canvas = FigureCanvasAgg(figure)
        canvas.draw()  # type: ignore[no-untyped-call]
        drawn = canvas.buffer_rgba()  # type: ignore[no-untyped-call]
        _DRAWN[figure] = np.array(drawn)[..., :3].copy()  # figures have an opaque background
    return _DRAWN[figure]


def save_picture(path: Path, figure: Figure, title: str = "") -> None:
    """Write the figure as a PNG file with a title, which is not shown."""
    about = PngInfo()
    about.add_text(_TITLE, title)
    Image.fromarray(pixels(figure)).save(path, dpi=(figure.dpi, figure.dpi), pnginfo=about)


def title_of(path: Path) -> str:
    """The title of a PNG file that ``save_picture`` wrote; empty if it has none or is damaged."""
    try:
        with Image.open(path) as picture:
            return str(picture.info.get(_TITLE, ""))
    except OSError:
        return ""
