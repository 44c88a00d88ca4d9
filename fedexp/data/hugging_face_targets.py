"""Targets of tokens from a Hugging Face dataset's column of lists."""

from collections.abc import Sequence

import numpy as np
import pandas as pd

from fedexp.core.token_rows import IGNORED
from fedexp.data.hugging_face_inputs import padded
from fedexp.errors import InputError


def of_tokens(
    key: str, values: pd.Series, sequences: Sequence[np.ndarray], length: int | None
) -> np.ndarray:
    """The class of each token, [n, L] int64; ``IGNORED`` for padding and unscored tokens.

    Args:
        key: the config key with its value, for messages.
        values: lists of whole numbers.
        sequences: the tokens of each row, cut to ``length``.
        length: L; longer lists are cut. None: all lists have the same length.

    Raises:
        InputError: a list is missing, differs in length from its tokens, has no scored token, or
            has another negative number.
    """
    if values.isna().any():
        raise InputError(f"{key}: has no value in {int(values.isna().sum())} rows")
    rows = [np.asarray(value)[:length] for value in values]
    for row, (classes, ids) in enumerate(zip(rows, sequences, strict=True)):
        if len(classes) != len(ids):
            raise InputError(f"{key}: row {row} has {len(classes)} for {len(ids)} tokens")
        scored = classes[classes != IGNORED]
        if not len(scored) or classes.dtype.kind not in "iu" or scored.min() < 0:
            raise InputError(
                f"{key}: row {row} should hold classes from 0 on, or {IGNORED} for tokens that are "
                "not scored; at least one token must be scored"
            )
    return padded(rows, length or len(rows[0]), padding=IGNORED).astype(np.int64)


def last_scored(targets: np.ndarray) -> np.ndarray:
    """[n] class of the last scored token in each row of ``targets`` [n, L]."""
    place = targets.shape[1] - 1 - (targets[:, ::-1] != IGNORED).argmax(axis=1)
    classes: np.ndarray = targets[np.arange(len(targets)), place]
    return classes
