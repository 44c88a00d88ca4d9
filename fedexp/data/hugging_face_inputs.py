"""Convert columns of a Hugging Face dataset to arrays of images, tokens or numbers."""

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import pandas as pd

from fedexp.data.cache import Images
from fedexp.data.image_decoding import Fit, fill_in_threads, fitted, named_in_errors
from fedexp.errors import InputError

Kind = Literal["image", "array", "tokens", "numbers"]

CHANNELS = (1, 3)


def kind_of(key: str, feature: Any) -> Kind:
    """The kind of inputs in a column.

    Args:
        key: the config key with the column's name, for messages.
        feature: its type in the library.

    Raises:
        InputError: the type is text or another type that cannot be an input.
    """
    name = type(feature).__name__
    if name == "Image":
        return "image"
    if name in ("Array2D", "Array3D"):
        return "array"
    inner = getattr(feature, "feature", None)
    dtype = getattr(feature if inner is None else inner, "dtype", "")
    if is_list(feature) and _is_integer(dtype):
        return "tokens"
    if dtype == "bool" or _is_integer(dtype) or dtype.startswith(("float", "double")):
        return "numbers"
    advice = "; convert text to token ids first" if "string" in dtype else ""
    raise InputError(
        f"{key}: holds {dtype or name}; inputs are images, numbers, lists of numbers, or lists of "
        f"integers, which are tokens{advice}"
    )


def is_list(feature: Any) -> bool:
    """Whether a column of this type holds a list of any length in each row."""
    return type(feature).__name__ in ("List", "LargeList", "Sequence")


def column(part: Any, name: str) -> pd.Series:
    """One column of the ``datasets.Dataset`` ``part``."""
    values: pd.Series = part.select_columns([name]).to_pandas()[name]
    return values


def numbers(key: str, part: Any, names: Sequence[str]) -> np.ndarray:
    """[n, d] float64: columns of numbers and of lists of numbers, side by side."""
    found = [_numbers(f"{key}={name}", column(part, name)) for name in names]
    return np.concatenate(found, axis=1)


def _numbers(key: str, values: pd.Series) -> np.ndarray:
    """[n, d] float64 from one column of numbers or of lists of numbers."""
    if values.isna().any():
        raise InputError(f"{key}: has no value in {int(values.isna().sum())} rows")
    if values.dtype == object:
        widths = {len(value) for value in values}
        if len(widths) > 1:
            raise InputError(
                f"{key}: lists have {min(widths)} to {max(widths)} numbers, not one length"
            )
        found = np.stack([np.asarray(value, dtype=np.float64) for value in values])
    else:
        found = values.to_numpy(dtype=np.float64)[:, None]
    if not np.isfinite(found).all():
        raise InputError(f"{key}: holds a value that is missing or infinite")
    return found


def tokens(key: str, values: pd.Series, length: int | None) -> list[np.ndarray]:
    """n arrays of token ids, cut to ``length``; without a length all must be equally long.

    Raises:
        InputError: a sequence is missing or empty, or has a negative id or another length.
    """
    if values.isna().any():
        raise InputError(f"{key}: has no value in {int(values.isna().sum())} rows")
    found = [np.asarray(value)[:length] for value in values]
    widths = {len(ids) for ids in found}
    if 0 in widths:
        raise InputError(f"{key}: has an empty sequence")
    if length is None and len(widths) > 1:
        raise InputError(
            f"{key}: sequences have {min(widths)} to {max(widths)} tokens; set "
            "data.sequence_length=... to cut longer ones and pad shorter ones"
        )
    if any(ids.dtype.kind not in "iu" or ids.min() < 0 for ids in found):
        raise InputError(f"{key}: holds a token that is missing or negative")
    return found


def padded(sequences: Sequence[np.ndarray], length: int, padding: int) -> np.ndarray:
    """[n, length] int32: shorter sequences are padded in front with ``padding``."""
    rows = np.full((len(sequences), length), padding, dtype=np.int32)
    for row, ids in zip(rows, sequences, strict=True):
        row[length - len(ids) :] = ids
    return rows


def array(key: str, part: Any, name: str) -> np.ndarray:
    """[n, channels, height, width] uint8 of pixels, or [n, ...] float32 of other numbers."""
    values = np.asarray(part.select_columns([name]).with_format("numpy")[:][name])
    if part.features[name].dtype != "uint8":
        return values.astype(np.float32)
    if values.ndim == 3:
        values = values[:, None]
    elif values.shape[1] not in CHANNELS and values.shape[3] in CHANNELS:
        values = values.transpose(0, 3, 1, 2)
    if values.shape[1] not in CHANNELS:
        raise InputError(
            f"{key}: has images of {values.shape[1:]}; one side should be 1 or 3 channels"
        )
    return np.ascontiguousarray(values.astype(np.uint8))


def image_shape(key: str, part: Any, name: str, size: int | None) -> tuple[int, ...]:
    """[channels, height, width] of the first image, or with ``size`` for height and width."""
    with named_in_errors(key):
        image = part[0][name]
        channels = 1 if image.mode in ("1", "L", "LA", "I;16") else 3
    return (channels, *((image.height, image.width) if size is None else (size, size)))


def decode(key: str, part: Any, name: str, fit: Fit, images: Images) -> None:
    """Fill ``images`` [n, channels, height, width] with a column's images."""
    only = part.select_columns([name])

    def read(index: int) -> Images:
        row = f"{key}: row {index}"
        with named_in_errors(row):
            return fitted(only[index][name], images.shape[1:], fit, row)

    fill_in_threads(images, fit, read)


def _is_integer(dtype: str) -> bool:
    return dtype.startswith(("int", "uint"))
