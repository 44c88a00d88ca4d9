"""Which figures are drawn in which round."""

from matplotlib.figure import Figure

from fedexp.config.schema import Tracking
from fedexp.core.data_figure import Arrays
from fedexp.core.messages import Message, Update
from fedexp.core.shown_clients import ALL_CLIENTS, evenly_spaced
from fedexp.data.federated import FederatedData
from fedexp.distributed.ranks import Ranks
from fedexp.engines.resources import Resources
from fedexp.tracking.class_similarity import prototype_similarity
from fedexp.tracking.heatmaps import partition_heatmap, similarity_heatmap, similarity_zoom
from fedexp.tracking.loss_surface import LossSurfaces
from fedexp.tracking.model_features import draw_features
from fedexp.tracking.named_classes import superclass_pairs

_MOST_SHOWN = 1000
"""Clients in the picture of the partition of a large population at most."""


class Pictures:
    """Draws the partition before training and prototype similarity every ``heatmap_every`` rounds.

    After the last round it draws prototype similarity, the parts' own figures, and the features of
    the global model and of the clients that are asked for; after the rounds that are asked for, the
    loss surface. Only the first rank draws; its parts see the memories of that rank's clients.
    """

    def __init__(self, settings: Tracking, rounds: int, resources: Resources, ranks: Ranks) -> None:
        self.settings, self.rounds, self.resources = settings, rounds, resources
        self.ranks = ranks
        self.loss_surfaces = LossSurfaces(settings.loss_surface, resources, ranks)

    def observe(self, update: Update) -> None:
        """Note an accepted update of the round that is drawn next."""
        self.loss_surfaces.observe(update)

    def __call__(self, message: Message) -> dict[str, Figure]:
        """Name -> figure for the global model in ``message``; empty if none is due."""
        is_last = message.round == self.rounds
        if message.round == 0:
            return {"heatmap/partition": partition_picture(self.resources.data)}
        figures: dict[str, Figure] = {}
        if is_last or message.round % self.settings.heatmap_every == 0:
            figures |= self._similarity(message)
        figures |= self.loss_surfaces(message)
        if self.ranks.is_first and is_last:
            figures |= self._part_figures()
        if is_last:
            figures |= draw_features(self.settings, self.resources, self.ranks, message)
        return figures

    def _similarity(self, message: Message) -> dict[str, Figure]:
        """The similarity of the class prototypes, and pairs of super-classes of it."""
        found = prototype_similarity(self.resources, self.ranks, message)
        if found is None or not self.ranks.is_first:
            return {}
        about, title = self.resources.data.description, "Similarity of class prototypes"
        if found.clients:
            title += f",\nmean over {found.clients} clients' models"
        data: Arrays = {
            "similarity": found.cosines.numpy(),
            "angle_degrees": found.angles.numpy(),
            "classes": about.classes,
            "superclasses": about.superclasses,
        }
        whole = similarity_heatmap(found.cosines, about.classes, about.superclasses, title, data)
        figures = {"heatmap/prototype_similarity": whole}
        if pairs := superclass_pairs(self.settings.heatmap_zoom, about):
            zoom = similarity_zoom(found.cosines, about.classes, about.superclasses, pairs, title)
            figures["heatmap/prototype_similarity_zoom"] = zoom
        return figures

    def _part_figures(self) -> dict[str, Figure]:
        """The parts' own figures of the whole run."""
        resources = self.resources
        figures: dict[str, Figure] = {}
        for name, part in resources.parts.items():
            memories = resources.store.memories(name)
            figures |= part.figures(memories, resources.data.description)
        return figures


def partition_picture(data: FederatedData) -> Figure:
    """The classes of each client, or of evenly spaced ones in a large population."""
    clients, counts = data.counted, data.counted_classes
    if len(clients) > ALL_CLIENTS:
        clients, counts = evenly_spaced(clients, _MOST_SHOWN), evenly_spaced(counts, _MOST_SHOWN)
    return partition_heatmap(counts, data.description.classes, clients.tolist(), len(data.clients))
