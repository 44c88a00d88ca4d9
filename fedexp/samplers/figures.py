"""Pictures of whom a sampler chose and of what it believed about the clients.

The figures belong to no window and to no global state, so they can be drawn anywhere.
"""

from collections.abc import Mapping

import numpy as np
from matplotlib import colormaps
from matplotlib.colors import BoundaryNorm
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from torch import Tensor

from fedexp.samplers.correlation import spearman

_DPI = 130
_FAINT = "#f3f3f3"
_BAR = "#7a8ca3"
_POINT = "#2b5c8a"


def times_chosen_bars(times_chosen: Tensor) -> Figure:
    """How often each client was chosen, and a line where all would be alike.

    Args:
        times_chosen: [N].
    """
    times = times_chosen.cpu().numpy()
    clients = len(times)
    figure = Figure(figsize=(_width(clients), 3.4), dpi=_DPI, layout="constrained")
    axes = figure.subplots()
    # One outline with a gap after each bar: 100,000 separate bars would take minutes.
    edges = np.add.outer(np.arange(clients), [-0.42, 0.42]).ravel()
    heights = np.zeros(2 * clients - 1)
    heights[::2] = times
    axes.stairs(heights, edges, fill=True, color=_BAR)
    axes.axhline(times.mean(), color="black", linewidth=0.8, linestyle="--", label="mean")
    axes.set(xlabel="client", ylabel="times chosen", xlim=(-0.5, clients - 0.5))
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.yaxis.set_major_locator(MaxNLocator(integer=True))
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, loc="upper right")
    figure.suptitle(f"Times chosen: {times.sum():,} draws among {clients:,} clients")
    return figure


def entropy_scatter(true: Tensor, estimated: Tensor) -> Figure:
    """What the sampler believes about the clients' labels against what is so.

    Args:
        true: [n] entropy of each client's labels in nats.
        estimated: [n] HiCS-FL's estimate of it.
    """
    rho = spearman(true, estimated)
    figure = Figure(figsize=(5.2, 4.6), dpi=_DPI, layout="constrained")
    axes = figure.subplots()
    axes.scatter(true.cpu(), estimated.cpu(), s=24, alpha=0.6, color=_POINT, edgecolors="none")
    axes.set(xlabel="entropy of the labels (nats)", ylabel="estimated entropy (nats)")
    axes.spines[["top", "right"]].set_visible(False)
    correlation = "" if rho is None else f", Spearman's rho {rho:.2f}"
    axes.set_title(f"Label entropy of {len(true):,} clients{correlation}", fontsize=11)
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


def _name(clients: Tensor, row: float) -> str:
    """The number of the client in this row; empty beside the picture."""
    return str(int(clients[int(row)])) if 0 <= row < len(clients) else ""


def _width(columns: int) -> float:
    """Inches: comfortable when there are few columns, bounded when there are many."""
    return float(np.clip(0.2 * columns + 2, 6, 15))
