"""Make names from outside fedexp (class names, folders, overrides) safe to show.

This module imports nothing slow, because tables and error lines use it, too.
"""

import re

_UNSAFE = re.compile("[\x00-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
"""Control characters, changes of the reading direction, and halves of surrogate pairs."""


def printable(text: str) -> str:
    r"""The text in one line; characters that control a terminal become escapes like ``\x1b``."""
    return _UNSAFE.sub(lambda found: ascii(found[0])[1:-1], text)


def legible(name: str, longest: int = 40) -> str:
    """Make a name fit for a figure: printable, and cut to ``longest`` characters."""
    shown = printable(name[: longest + 1])
    return shown if len(shown) <= longest else f"{shown[: longest - 1]}…"
