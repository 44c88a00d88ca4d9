"""A picture of the partition: the number of samples of each class at each client."""

from matplotlib.figure import Figure

from fedexp.config.compatibility.traits import Need
from fedexp.data.federated import FederatedData
from fedexp.drawing.heatmaps import partition_heatmap
from fedexp.drawing.shown_clients import ALL_CLIENTS, evenly_spaced
from fedexp.measures.measure import AfterRound, Measure, Measured

_MOST_SHOWN = 1000
"""Number of clients in the picture of a large population."""


class Partition(Measure):
    """``heatmap/partition``: the number of samples of each class at each client."""

    needs = frozenset({Need.SIMULATION})

    def due(self, round: int, rounds: int) -> bool:
        """True before training."""
        return round == 0

    def __call__(self, after: AfterRound) -> Measured:
        """The heatmap."""
        return Measured(figures={"heatmap/partition": partition_picture(after.data)})


def partition_picture(data: FederatedData) -> Figure:
    """A heatmap of all clients; of a large population, evenly spaced clients are drawn."""
    clients, counts = data.counted, data.counted_classes
    if len(clients) > ALL_CLIENTS:
        clients, counts = evenly_spaced(clients, _MOST_SHOWN), evenly_spaced(counts, _MOST_SHOWN)
    return partition_heatmap(counts, data.description.classes, clients.tolist(), len(data.clients))
