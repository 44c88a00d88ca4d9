"""A figure of the number of accepted updates of each client."""

import torch
from matplotlib.figure import Figure
from torch import Tensor

from fedexp.drawing.client_bars import bars, number_clients, width
from fedexp.drawing.data_figure import DataFigure, columns
from fedexp.drawing.style import BAR, legend_above, open_frame, whole_numbers


def times_chosen_bars(
    times_chosen: Tensor, entropies: Tensor, shown: Tensor | None = None
) -> Figure:
    """A bar chart of each client's accepted updates, with a line at the mean over all clients.

    Args:
        times_chosen: [N] the number of accepted updates of each client; see ``Sampler``.
        entropies: [n] label entropy of each shown client in nats. It is saved with the figure but
            not drawn.
        shown: [n] the numbers of the shown clients, each with an accepted update. If None, all N
            clients are shown.
    """
    times = times_chosen.cpu().numpy()
    everyone = torch.arange(len(times))
    clients = everyone if shown is None else shown
    data = columns(client=clients, times_chosen=times_chosen[clients], label_entropy_nats=entropies)
    figure = DataFigure(data, (width(len(clients)), 3.4))
    axes = figure.subplots()
    if len(clients):
        bars(axes, times[clients.numpy()], -0.42, 0.42, color=BAR)
    mean = times.mean()
    axes.axhline(mean, color="black", linewidth=0.8, linestyle="--", label="mean")
    axes.set(xlabel="client", ylabel="accepted updates", xlim=(-0.5, max(1, len(clients)) - 0.5))
    number_clients(axes.xaxis, clients)
    whole_numbers(axes.yaxis)
    open_frame(axes)
    legend_above(axes)
    title = f"{times.sum():,} accepted updates of {len(times):,} clients"
    if shown is not None:
        title += f"; shown: {len(clients):,} of the {(times > 0).sum():,} clients with any"
    figure.suptitle(title)
    return figure
