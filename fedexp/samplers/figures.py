"""Pictures of a sampler's choices and of its estimates.

The figures belong to no window and to no global state, so they can be drawn anywhere.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.colors import BoundaryNorm
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from torch import Tensor

from fedexp.core.data_figure import DataFigure
from fedexp.samplers.correlation import spearman

_DPI = 130
_FAINT = "#f3f3f3"
_BAR = "#7a8ca3"
_POINT = "#2b5c8a"


def times_chosen_bars(
    times_chosen: Tensor, entropies: Tensor, shown: Tensor | None = None
) -> Figure:
    """How often each client was chosen, and a line at the mean over all clients.

    Args:
        times_chosen: [N].
        entropies: [n] of each shown client's labels in nats; saved beside the picture.
        shown: [n] the numbers of the clients that are shown, some of those that were chosen; None:
            all N.
    """
    times = times_chosen.cpu().numpy()
    everyone = torch.arange(len(times))
    clients = everyone if shown is None else shown
    data = _columns(
        client=clients, times_chosen=times_chosen[clients], label_entropy_nats=entropies
    )
    figure = DataFigure(data, figsize=(_width(len(clients)), 3.4), dpi=_DPI, layout="constrained")
    axes = figure.subplots()
    if len(clients):
        _bars(axes, times[clients.numpy()], -0.42, 0.42, color=_BAR)
    mean = times.mean()
    axes.axhline(mean, color="black", linewidth=0.8, linestyle="--", label="mean")
    axes.set(xlabel="client", ylabel="times chosen", xlim=(-0.5, max(1, len(clients)) - 0.5))
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    if shown is not None:
        axes.xaxis.set_major_formatter(lambda place, _: _name(clients, place))
    axes.yaxis.set_major_locator(MaxNLocator(integer=True))
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, loc="lower right", bbox_to_anchor=(1, 1))
    title = f"Times chosen: {times.sum():,} draws among {len(times):,} clients"
    if shown is not None:
        title += f"; shown: {len(clients):,} of the {(times > 0).sum():,} that were chosen"
    figure.suptitle(title)
    return figure


def entropy_scatter(clients: Tensor, true: Tensor, estimated: Tensor) -> Figure:
    """Estimated against true label entropy, one point a client.

    Args:
        clients: [n] their numbers.
        true: [n] entropy of each client's labels in nats.
        estimated: [n] HiCS-FL's estimate of it.
    """
    rho = spearman(true, estimated)
    data = _columns(client=clients, true_nats=true, estimated_nats=estimated)
    figure = DataFigure(data, figsize=(5.2, 4.6), dpi=_DPI, layout="constrained")
    axes = figure.subplots()
    axes.scatter(true.cpu(), estimated.cpu(), s=24, alpha=0.6, color=_POINT, edgecolors="none")
    axes.set(xlabel="entropy of the labels (nats)", ylabel="estimated entropy (nats)")
    axes.spines[["top", "right"]].set_visible(False)
    correlation = "" if rho is None else f", Spearman's rho {rho:.2f}"
    axes.set_title(f"Label entropy of {len(true):,} clients{correlation}", fontsize=11)
    return figure


def entropy_bars(clients: Tensor, true: Tensor, estimated: Tensor) -> Figure:
    """True and estimated label entropy side by side for each client (HiCS-FL, Figs. 9-12).

    Args:
        clients: [n] their numbers.
        true: [n] entropy of each client's labels in nats.
        estimated: [n] HiCS-FL's estimate of it.
    """
    data = _columns(client=clients, true_nats=true, estimated_nats=estimated)
    figure = DataFigure(data, figsize=(_width(len(clients)), 3.4), dpi=_DPI, layout="constrained")
    axes = figure.subplots()
    _bars(axes, true.cpu().numpy(), -0.42, 0, color=_BAR, label="true")
    _bars(axes, estimated.cpu().numpy(), 0, 0.42, color=_POINT, label="estimated")
    axes.set(xlabel="client", ylabel="label entropy (nats)", xlim=(-0.5, len(clients) - 0.5))
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.xaxis.set_major_formatter(lambda place, _: _name(clients, place))
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, ncols=2, loc="lower right", bbox_to_anchor=(1, 1))
    figure.suptitle(f"Label entropy of {len(clients):,} clients")
    return figure


def membership_heatmap(memberships: Mapping[int, Tensor], clients: Tensor) -> Figure:
    """Which cluster each client was in, round by round; blank where there were no clusters.

    Args:
        memberships: round -> [n] cluster of each client, numbered by mean estimated entropy, lowest
            first; negative for none.
        clients: [n] their numbers.
    """
    rounds = range(min(memberships), max(memberships) + 1)
    table = np.full((len(clients), len(rounds)), -1)
    for round, clusters in memberships.items():
        table[:, round - rounds.start] = clusters.cpu().numpy()
    num_clusters = table.max() + 1
    figure = Figure(
        figsize=(_width(len(rounds)), float(np.clip(0.12 * len(clients) + 2, 4, 11))),
        dpi=_DPI,
        layout="constrained",
    )
    axes = figure.subplots()
    image = axes.pcolormesh(
        np.arange(rounds.start, rounds.stop + 1) - 0.5,
        np.arange(len(clients) + 1) - 0.5,
        np.ma.masked_less(table, 0),
        cmap=colormaps["viridis"].resampled(num_clusters).with_extremes(bad=_FAINT),
        norm=BoundaryNorm(np.arange(num_clusters + 1) - 0.5, num_clusters),
    )
    axes.invert_yaxis()
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.yaxis.set_major_locator(MaxNLocator(integer=True))
    axes.yaxis.set_major_formatter(lambda row, _: _name(clients, row))
    axes.set(xlabel="round", ylabel="client")
    bar = figure.colorbar(image, ax=axes, aspect=35, pad=0.02)
    bar.set_label("cluster, by mean estimated entropy, lowest first")
    bar.locator = MaxNLocator(integer=True)
    bar.update_ticks()
    figure.suptitle("Clusters of clients over the rounds")
    return figure


def _columns(**tensors: Tensor) -> dict[str, np.ndarray]:
    return {name: tensor.cpu().numpy() for name, tensor in tensors.items()}


def _bars(axes: Axes, heights: np.ndarray, left: float, right: float, **style: Any) -> None:
    """A bar from i + ``left`` to i + ``right`` for each of the [n] heights."""
    # One outline with a gap after each bar: 100,000 separate bars would take minutes.
    edges = np.add.outer(np.arange(len(heights)), [left, right]).ravel()
    outline = np.zeros(2 * len(heights) - 1)
    outline[::2] = heights
    axes.stairs(outline, edges, fill=True, **style)


def _name(clients: Tensor, place: float) -> str:
    """The number of the client at this place of an axis; empty outside the picture."""
    return str(int(clients[int(place)])) if 0 <= place < len(clients) else ""


def _width(columns: int) -> float:
    """Inches: comfortable when there are few columns, bounded when there are many."""
    return float(np.clip(0.2 * columns + 2, 6, 15))
