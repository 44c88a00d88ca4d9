"""Long lists cut into pages."""

from collections.abc import Iterable
from typing import TypeVar

T = TypeVar("T")


def pages(items: Iterable[T], size: int) -> list[list[T]]:
    """Cut the items into pages of at most ``size``, in order."""
    every = list(items)
    return [every[start : start + size] for start in range(0, len(every), size)]
