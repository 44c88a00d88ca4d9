"""Convert columns of a Hugging Face dataset to arrays of images, tokens or numbers."""

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from fedexp.data.cache import Images
from fedexp.data.features import LARGEST
from fedexp.data.hugging_face_columns import dense, ragged
from fedexp.data.image_decoding import Fit, fill_in_threads, fitted, named_in_errors
from fedexp.errors import InputError

Kind = Literal["image", "array", "tokens", "numbers"]

CHANNELS = (1, 3)

MOST_TOKENS = 2**20
"""Token ids must be below this number. A large tokenizer has several times fewer ids."""


def kind_of(key: str, feature: Any) -> Kind:
    """The kind of inputs that a column holds: images, arrays, tokens or numbers.

    Args:
        key: the config key with the column's name, for messages.
        feature: the column's type in the library.

    Raises:
        InputError: the type is text or another type that cannot be an input.
    """
    inner, depth = feature, 0
    while is_list(inner):
        inner, depth = inner.feature, depth + 1
    name, dtype = type(inner).__name__, getattr(inner, "dtype", "")
    if name == "Image" and not depth:
        return "image"
    if dtype.startswith(("bool", "int", "uint", "float", "double")):
        if name.startswith("Array") or depth > 1:
            return "array"
        return "tokens" if depth and dtype.startswith(("int", "uint")) else "numbers"
    advice = "; convert text to token ids first" if "string" in dtype else ""
    raise InputError(
        f"{key}: holds {dtype or name}; inputs are images, numbers, lists of numbers, or lists of "
        f"integers, which are tokens{advice}"
    )


def is_list(feature: Any) -> bool:
    """Whether a column of this type holds a list of any length in each row."""
    return type(feature).__name__ in ("List", "LargeList", "Sequence")


def numbers(split: str, part: Any, names: Sequence[str]) -> np.ndarray:
    """Join columns of numbers, or of lists of numbers, side by side: [n, d] float64."""
    found = [dense(f"data.input={name}: the split {split}", part, name) for name in names]
    return np.concatenate([each.reshape(len(each), -1) for each in found], axis=1, dtype=np.float64)


def tokens(key: str, part: Any, name: str, length: int | None) -> list[np.ndarray]:
    """Read a column as n arrays of token ids, cut to ``length``.

    If ``length`` is None, all sequences must have the same length.

    Raises:
        InputError: a sequence is missing or empty, has another length, or holds an id that is
            negative or not below ``MOST_TOKENS``.
    """
    found = [ids[:length] for ids in ragged(key, part, name)]
    widths = [len(ids) for ids in found]
    if 0 in widths:
        raise InputError(f"{key} has an empty sequence in row {widths.index(0)}")
    if length is None and len(set(widths)) > 1:
        raise InputError(
            f"{key} has sequences of {min(widths)} to {max(widths)} tokens; set "
            "data.sequence_length=... to cut longer ones and pad shorter ones"
        )
    for row, ids in enumerate(found):
        for token in (ids.min(), ids.max()):
            if not 0 <= token < MOST_TOKENS:
                raise InputError(
                    f"{key} holds the token {token} in row {row}; token ids are 0 to "
                    f"{MOST_TOKENS - 1:,}"
                )
    return found


def array(key: str, part: Any, name: str) -> np.ndarray:
    """Read the column ``name`` of the dataset ``part`` as an array.

    uint8 values are images: the result is uint8 [n, channels, height, width]. In the column the
    channels may come last, or be absent (grey). Other numbers become float32 [n, ...].

    Raises InputError if the values do not fit; the message begins with ``key``.
    """
    values = dense(key, part, name)
    if values.dtype != np.uint8:
        return as_float32(key, values)
    if values.ndim == 3:
        values = values[:, None]
    elif values.shape[1] not in CHANNELS and values.shape[-1] in CHANNELS:
        values = np.moveaxis(values, -1, 1)
    if values.ndim != 4 or values.shape[1] not in CHANNELS:
        raise InputError(
            f"{key} has images of {values.shape[1:]}; should have height, width, and 1 or 3 "
            "channels as the first or last side"
        )
    return np.ascontiguousarray(values)


def as_float32(key: str, values: np.ndarray) -> np.ndarray:
    """Convert values [n, ...] to float32. If one is too large, raise an InputError with its row."""
    refuse_too_large(key, np.abs(values.reshape(len(values), -1)).max(axis=1) > LARGEST)
    return values.astype(np.float32)


def refuse_too_large(key: str, rows: np.ndarray) -> None:
    """Raise InputError if an element of ``rows`` [n] is true: the row has a too large number."""
    if rows.any():
        raise InputError(f"{key} holds a number that is too large in row {rows.argmax()}")


def image_shape(key: str, part: Any, name: str, size: int | None) -> tuple[int, ...]:
    """[channels, height, width] of the first image; ``size``, if not None, is height and width."""
    with named_in_errors(f"{key}, row 0"):
        image = part[0][name]
        shape = (image.height, image.width) if size is None else (size, size)
        return (1 if _is_grey(image) else 3, *shape)


def decode(key: str, part: Any, name: str, fit: Fit, images: Images) -> None:
    """Fill ``images`` [n, channels, height, width] with a column's images.

    Raises InputError if an image is damaged, has a size that ``fit`` refuses, or is in colour
    although the first one is grey.
    """
    only = part.select_columns([name])

    def read(index: int) -> Images:
        row = f"{key}, row {index}"
        with named_in_errors(row):
            image = only[index][name]
            if images.shape[1] == 1 and not _is_grey(image):
                raise InputError(f"{row}: is in colour, but row 0 is grey; use images of one kind")
            return fitted(image, images.shape[1:], fit, row)

    fill_in_threads(images, fit, read)


def _is_grey(image: Any) -> bool:
    return image.mode in ("1", "L", "LA") or image.mode.startswith("I;16")
