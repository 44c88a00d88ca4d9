"""Long lists, drawn on several pages."""

from collections.abc import Iterable
from typing import TypeVar

T = TypeVar("T")


def pages(items: Iterable[T], size: int) -> list[list[T]]:
    """The items in order, ``size`` at most a page."""
    every = list(items)
    return [every[start : start + size] for start in range(0, len(every), size)]
