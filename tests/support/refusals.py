"""Errors that a user sees as one line."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from fedexp.errors import InputError


@contextmanager
def refused(message: str) -> Iterator[None]:
    """The block raises an InputError of one line in which this regular expression is found."""
    with pytest.raises(InputError, match=message) as caught:
        yield
    assert "\n" not in str(caught.value)
