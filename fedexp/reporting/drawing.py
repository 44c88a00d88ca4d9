"""A picture of a report before it is drawn, and its pages."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from io import BytesIO
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:  # reports without pictures do not wait for matplotlib
    from matplotlib.figure import Figure


T = TypeVar("T")


@dataclass(frozen=True)
class Drawing:
    """A picture that can be drawn.

    Attributes:
        name: the name of the image files, without suffix; a repeated name gets a number.
        title: the heading above the picture.
        draw: draws the figure; returns None if there is nothing to show.
        is_extra: whether the picture is drawn only with ``--figures all``.
    """

    name: str
    title: str
    draw: Callable[[], Figure | None]
    is_extra: bool = False


def file_name(text: str) -> str:
    """Turn the text into a part of a file's name, at most 150 bytes long."""
    name = "".join(each if each.isalnum() or each in "-." else "_" for each in text)
    return name.encode()[:150].decode(errors="ignore")


def png(figure: Figure) -> bytes:
    """The figure as a PNG file."""
    buffer = BytesIO()
    figure.savefig(buffer, format="png", dpi=110)
    return buffer.getvalue()


def pages(items: Iterable[T], size: int) -> list[list[T]]:
    """Cut the items into pages of at most ``size``, in order."""
    every = list(items)
    return [every[start : start + size] for start in range(0, len(every), size)]
