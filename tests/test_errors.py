"""Errors whose texts the command line prints."""

import pytest

from fedexp.errors import first_line


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (ValueError("wrong"), "wrong"),
        (ValueError("wrong\nand how to mend it"), "wrong"),
        (TimeoutError(), "TimeoutError"),
        (ValueError("\nonly below"), "ValueError"),
    ],
)
def test_the_first_line_is_never_empty(error: Exception, expected: str) -> None:
    assert first_line(error) == expected
