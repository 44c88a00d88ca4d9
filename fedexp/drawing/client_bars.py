"""Bar charts with one bar for each client, also for 100,000 clients."""

from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from numpy.typing import NDArray
from torch import Tensor

from fedexp.drawing.style import whole_numbers


def bars(axes: Axes, heights: NDArray[Any], left: float, right: float, **style: Any) -> None:
    """For each i, draw a bar of height ``heights[i]`` from i + ``left`` to i + ``right``.

    There must be at least one height.
    """
    # One outline for all bars, with gaps between them: 100,000 separate bars would take minutes.
    edges = np.add.outer(np.arange(len(heights)), [left, right]).ravel()
    outline = np.zeros(2 * len(heights) - 1)
    outline[::2] = heights
    axes.stairs(outline, edges, fill=True, **style)


def number_clients(axis: Axis, clients: Tensor) -> None:
    """Label the axis with the clients' numbers [n]; position i of the axis is the i-th client."""

    def number(place: float, _: object = None) -> str:
        return str(int(clients[int(place)])) if 0 <= place < len(clients) else ""

    whole_numbers(axis)
    axis.set_major_formatter(number)


def width(columns: int) -> float:
    """Width in inches of a figure with this number of columns: between 6 and 15."""
    return float(np.clip(0.2 * columns + 2, 6, 15))
