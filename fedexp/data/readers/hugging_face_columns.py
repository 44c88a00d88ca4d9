"""Read columns of a Hugging Face dataset as arrays: images, tokens, numbers, tokens' targets."""

from collections.abc import Iterator, Sequence
from typing import Any, Literal

import numpy as np
import pandas as pd

from fedexp.core.token_rows import IGNORED
from fedexp.data.cache import Images
from fedexp.data.image_decoding import Fit, fill_in_threads, fitted, named_in_errors
from fedexp.data.preparations.tokens import padded
from fedexp.data.readers.features import LARGEST
from fedexp.errors import InputError

Kind = Literal["image", "array", "tokens", "numbers"]

CHANNELS = (1, 3)

MOST_TOKENS = 2**20
"""Token ids must be below this number. A large tokenizer has several times fewer ids."""


def column(part: Any, name: str) -> pd.Series:
    """Read the column ``name`` of ``part``, such as each row's class or user, as a Series [n]."""
    values: pd.Series = part.select_columns([name]).to_pandas()[name]
    return values


def dense(key: str, part: Any, name: str) -> np.ndarray:
    """Read a column of n numbers, or of n nested lists of one shape, as an array [n, ...].

    Args:
        key: the config key with the column and the split, for messages.
        part: a ``datasets.Dataset``.
        name: the column.

    Raises:
        InputError: a number is missing, infinite or NaN, or a list is missing or has another shape;
            the message names the row.
    """
    found: list[np.ndarray] = []
    for start, chunk in _chunks(part, name):
        values, shape = chunk, [len(chunk)]
        while _is_list(values):
            lengths, values = _unfold(key, values, start, rows=shape[0])
            shape.append(int(lengths[0]))
            expected = found[0].shape[len(shape) - 1] if found else shape[-1]
            if len(others := np.flatnonzero(lengths != expected)):
                row = start + int(others[0]) * shape[0] // len(lengths)
                raise InputError(
                    f"{key} has a list of {lengths[others[0]]} values in row {row}, but of "
                    f"{expected} in row 0; all should have one shape"
                )
        found.append(_complete(key, values, start, rows=shape[0]).reshape(shape))
    return np.concatenate(found)


def ragged(key: str, part: Any, name: str) -> list[np.ndarray]:
    """Read a column of n lists of whole numbers as n arrays, which may differ in length.

    Raises InputError if a list or a number is missing; the message names the row.
    """
    found: list[np.ndarray] = []
    for start, chunk in _chunks(part, name):
        lengths, values = _unfold(key, chunk, start, rows=len(chunk))
        row = np.repeat(np.arange(len(chunk)), lengths)
        if values.null_count:
            missing = row[np.flatnonzero(values.is_null().to_numpy(zero_copy_only=False))[0]]
            raise InputError(f"{key} has a list with a missing value in row {start + missing}")
        found += np.split(values.to_numpy(), np.cumsum(lengths)[:-1])
    return found


def _chunks(part: Any, name: str) -> Iterator[tuple[int, Any]]:
    """Yield each piece of a column: the number of its first row, and its Arrow array."""
    start = 0
    for chunk in part.select_columns([name]).with_format("arrow")[:][name].chunks:
        yield start, getattr(chunk, "storage", chunk)  # the library's own types wrap lists
        start += len(chunk)


def _is_list(values: Any) -> bool:
    from pyarrow import types

    kinds = (types.is_list, types.is_large_list, types.is_fixed_size_list)
    return any(each(values.type) for each in kinds)


def _unfold(key: str, lists: Any, start: int, rows: int) -> tuple[np.ndarray, Any]:
    """The length of each list, and the values of all lists in one Arrow array."""
    from pyarrow.compute import list_value_length

    _refuse_nulls(key, lists, start, rows)
    return list_value_length(lists).to_numpy(), lists.flatten()


def _complete(key: str, values: Any, start: int, rows: int) -> np.ndarray:
    """The values as a NumPy array. Raises InputError if a value is missing or not finite."""
    _refuse_nulls(key, values, start, rows)
    numbers: np.ndarray = values.to_numpy(zero_copy_only=False)
    if len(broken := np.flatnonzero(~np.isfinite(numbers))):
        row = start + int(broken[0]) * rows // len(numbers)
        raise InputError(f"{key} holds {numbers[broken[0]]} in row {row}; use finite numbers")
    return numbers


def _refuse_nulls(key: str, values: Any, start: int, rows: int) -> None:
    """Raise InputError if a value is missing.

    The ``values`` belong to ``rows`` rows from row ``start`` on; each row has equally many values.
    """
    if values.null_count:
        missing = values.is_null().to_numpy(zero_copy_only=False)
        row = start + int(np.flatnonzero(missing)[0]) * rows // len(missing)
        raise InputError(f"{key} has a missing value in row {row}")


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


def of_tokens(
    key: str,
    lists: Sequence[np.ndarray],
    sequences: Sequence[np.ndarray],
    length: int | None,
) -> np.ndarray:
    """The class of each token, [n, L] int64; ``IGNORED`` for padding and unscored tokens.

    Args:
        key: the config key with its value, for messages.
        lists: for each of n rows, the class of each token; -100 for an unscored token.
        sequences: for each row, its tokens, cut to ``length``.
        length: L, the number of tokens in a sequence; longer lists are cut. None if all lists have
            the same length.

    Raises:
        InputError: a list differs in length from its tokens or has no scored token, or a class is
            negative (other than -100) or not below ``MOST_TOKENS``.
    """
    rows = [each[:length] for each in lists]
    for row, (classes, ids) in enumerate(zip(rows, sequences, strict=True)):
        if len(classes) != len(ids):
            raise InputError(f"{key} has {len(classes)} classes for {len(ids)} tokens in row {row}")
        scored = classes[classes != IGNORED]
        if not len(scored) or scored.min() < 0 or scored.max() >= MOST_TOKENS:
            raise InputError(
                f"{key} should hold in row {row} classes of 0 to {MOST_TOKENS - 1:,}, or {IGNORED} "
                "for tokens that are not scored; at least one token must be scored"
            )
    return padded(rows, length or len(rows[0]), padding=IGNORED).astype(np.int64)


def last_scored(targets: np.ndarray) -> np.ndarray:
    """[n] the class of the last scored token in each row of ``targets`` [n, L]."""
    place = targets.shape[1] - 1 - (targets[:, ::-1] != IGNORED).argmax(axis=1)
    classes: np.ndarray = targets[np.arange(len(targets)), place]
    return classes
