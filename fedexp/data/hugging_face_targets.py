"""Read the targets of tokens from a column of lists in a Hugging Face dataset."""

from collections.abc import Sequence

import numpy as np

from fedexp.core.token_rows import IGNORED
from fedexp.data.hugging_face_inputs import MOST_TOKENS
from fedexp.data.preparations.tokens import padded
from fedexp.errors import InputError


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
