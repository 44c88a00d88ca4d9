"""HiCS-FL's figures: true and estimated label entropies, and clusters of clients."""

from collections.abc import Mapping

import numpy as np
from matplotlib import colormaps
from matplotlib.colors import BoundaryNorm
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from torch import Tensor

from fedexp.drawing.client_bars import bars, number_clients, width
from fedexp.drawing.data_figure import DataFigure, columns
from fedexp.drawing.style import (
    BAR,
    FAINT,
    POINT,
    empty_figure,
    legend_above,
    open_frame,
    whole_numbers,
)
from fedexp.samplers.heterogeneity import spearman


def entropy_scatter(clients: Tensor, true: Tensor, estimated: Tensor) -> Figure:
    """A scatter plot of estimated against true label entropy, with one point for each client.

    Args:
        clients: [n] the numbers of the clients.
        true: [n] entropy of each client's labels in nats.
        estimated: [n] HiCS-FL's estimate of this entropy.
    """
    rho = spearman(true, estimated)
    data = columns(client=clients, true_nats=true, estimated_nats=estimated)
    figure = DataFigure(data, (5.2, 4.6))
    axes = figure.subplots()
    axes.scatter(true.cpu(), estimated.cpu(), s=24, alpha=0.6, color=POINT, edgecolors="none")
    axes.set(xlabel="entropy of the labels (nats)", ylabel="estimated entropy (nats)")
    open_frame(axes)
    correlation = "" if rho is None else f", Spearman's rho {rho:.2f}"
    axes.set_title(f"Label entropy of {len(true):,} clients{correlation}", fontsize=11)
    return figure


def entropy_bars(clients: Tensor, true: Tensor, estimated: Tensor) -> Figure:
    """Bars of the true and estimated label entropy of each client (HiCS-FL, Figs. 9-12).

    Args:
        clients: [n] the numbers of the clients.
        true: [n] entropy of each client's labels in nats.
        estimated: [n] HiCS-FL's estimate of this entropy.
    """
    data = columns(client=clients, true_nats=true, estimated_nats=estimated)
    figure = DataFigure(data, (width(len(clients)), 3.4))
    axes = figure.subplots()
    bars(axes, true.cpu().numpy(), -0.42, 0, color=BAR, label="true")
    bars(axes, estimated.cpu().numpy(), 0, 0.42, color=POINT, label="estimated")
    axes.set(xlabel="client", ylabel="label entropy (nats)", xlim=(-0.5, len(clients) - 0.5))
    number_clients(axes.xaxis, clients)
    open_frame(axes)
    legend_above(axes, ncols=2)
    figure.suptitle(f"Label entropy of {len(clients):,} clients")
    return figure


def membership_heatmap(memberships: Mapping[int, Tensor], clients: Tensor) -> Figure:
    """A heatmap of each client's cluster in each round. A round without clusters is blank.

    Args:
        memberships: round -> [n] cluster of each client, or a negative number for a client without
            a cluster. Cluster 0 has the lowest mean estimated entropy, cluster 1 the second lowest.
        clients: [n] the numbers of the clients.
    """
    rounds = range(min(memberships), max(memberships) + 1)
    table = np.full((len(clients), len(rounds)), -1)
    for round, clusters in memberships.items():
        table[:, round - rounds.start] = clusters.cpu().numpy()
    num_clusters = table.max() + 1
    height = float(np.clip(0.12 * len(clients) + 2, 4, 11))
    figure = empty_figure(width(len(rounds)), height)
    axes = figure.subplots()
    image = axes.pcolormesh(
        np.arange(rounds.start, rounds.stop + 1) - 0.5,
        np.arange(len(clients) + 1) - 0.5,
        np.ma.masked_less(table, 0),
        cmap=colormaps["viridis"].resampled(num_clusters).with_extremes(bad=FAINT),
        norm=BoundaryNorm(np.arange(num_clusters + 1) - 0.5, num_clusters),
    )
    axes.invert_yaxis()
    whole_numbers(axes.xaxis)
    number_clients(axes.yaxis, clients)
    axes.set(xlabel="round", ylabel="client")
    bar = figure.colorbar(image, ax=axes, aspect=35, pad=0.02)
    bar.set_label("cluster, by mean estimated entropy, lowest first")
    bar.locator = MaxNLocator(integer=True)
    bar.update_ticks()
    figure.suptitle("Clusters of clients over the rounds")
    return figure
