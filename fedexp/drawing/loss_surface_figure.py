"""The picture of a loss surface, from above and in perspective."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm, Normalize
from matplotlib.figure import Figure
from numpy.typing import NDArray

from fedexp.drawing.data_figure import Arrays, DataFigure
from fedexp.drawing.style import COLORS

_LEVELS = 12
_LOG_ABOVE = 20
"""The colours are logarithmic if the largest loss exceeds this many times the smallest loss."""
_MARKERS = "*os"


class MarkedModel(NamedTuple):
    """A model on the surface: name, position and test loss (nats)."""

    name: str
    x: float
    y: float
    loss: float


def loss_surface_figure(
    x: NDArray[np.float64],
    y: NDArray[np.float64],
    losses: NDArray[np.float64],
    models: Sequence[MarkedModel],
    is_random: tuple[bool, bool],
    round: int,
) -> Figure:
    """Draw the loss as contours and as a surface in perspective.

    Both pictures are blank where the loss is not finite.

    Args:
        x: [n] distances from the first model along the first axis, in parameter space.
        y: [m] distances from the first model along the second axis.
        losses: [m, n] test losses (nats).
        models: up to three models to mark, the global model first.
        is_random: whether each axis is a random direction.
        round: the round that the title names.
    """
    data: Arrays = {
        "x": x,
        "y": y,
        "loss": losses,
        "models": [model.name for model in models],
        "model_x_y_loss": np.array([model[1:] for model in models]),
    }
    figure = DataFigure(data, (10.6, 4.8))
    flat = figure.add_subplot(1, 2, 1)
    # Draw in the order of zorder. In the order of depth, the surface would hide the models in its
    # valley.
    solid: Any = figure.add_subplot(1, 2, 2, projection="3d", computed_zorder=False)
    shown = np.ma.masked_invalid(losses)
    labels = [
        f"distance in parameter space, {'random direction' if random else axis + ' axis'}"
        for random, axis in zip(is_random, ("first", "second"), strict=True)
    ]
    _draw_contours(figure, flat, x, y, shown)
    flat.set(xlabel=labels[0], ylabel=labels[1], aspect="equal")
    solid.plot_surface(
        *np.meshgrid(x, y), shown.filled(np.nan), cmap="viridis", norm=_norm(shown), alpha=0.85
    )
    solid.set(xlabel="first axis", ylabel="second axis", zlabel="test loss (nats)")
    for marker, model in zip(_MARKERS, models, strict=False):
        style: dict[str, Any] = {
            "s": 130 if marker == "*" else 60,
            "color": COLORS[1],
            "edgecolors": "black",
        }
        label = f"{model.name}, loss {model.loss:.3g}"
        flat.scatter(model.x, model.y, marker=marker, label=label, zorder=3, **style)
        place = (model.x, model.y, model.loss)
        solid.scatter(*place, marker=marker, depthshade=False, zorder=3, **style)
    figure.legend(*flat.get_legend_handles_labels(), loc="outside lower center", ncols=3)
    figure.suptitle(f"Test loss around the models of round {round}")
    return figure


def _draw_contours(
    figure: Figure, axes: Axes, x: NDArray[np.float64], y: NDArray[np.float64], losses: Any
) -> None:
    norm = _norm(losses)
    low, high = norm.vmin or 0.0, norm.vmax or 0.0
    levels = (np.geomspace if isinstance(norm, LogNorm) else np.linspace)(low, high, _LEVELS)
    cells = axes.pcolormesh(x, y, losses, cmap="viridis", norm=norm, shading="nearest")
    bar = figure.colorbar(
        cells, ax=axes, label="test loss (nats)", shrink=0.8, ticks=levels, format="%.3g"
    )
    bar.minorticks_off()
    if high > low:
        lines = axes.contour(x, y, losses, levels=levels, colors="white", linewidths=0.7)
        axes.clabel(lines, fontsize=7, fmt="%.3g")


def _norm(losses: Any) -> Normalize:
    """The colour scale: linear, or logarithmic if the losses are of different magnitudes."""
    low, high = float(losses.min()), float(losses.max())
    return LogNorm(low, high) if 0 < low < high / _LOG_ABOVE else Normalize(low, high)
