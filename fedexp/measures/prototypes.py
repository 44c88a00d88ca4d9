"""The similarity of the classes' prototypes, in the global model or in the clients' models."""

from typing import Annotated

import torch
from pydantic import Field, PositiveInt
from torch import Tensor

from fedexp.core.cosines import cosines
from fedexp.drawing.heatmaps import similarity_heatmap, similarity_zoom
from fedexp.engines.resources import Resources
from fedexp.measures.measure import AfterRound, Measure, Measured, Outline
from fedexp.measures.named_classes import superclass_pairs


class Prototypes(Measure):
    """``heatmap/prototype_similarity``: the cosine of every pair of class prototypes.

    ``prototype_similarity`` explains whose prototypes are compared.

    Args:
        every: rounds between heatmaps; the last round always has one.
        zoom: pairs of super-classes whose classes are compared in a separate figure.
    """

    def __init__(
        self,
        every: PositiveInt,
        zoom: list[Annotated[list[str], Field(min_length=2, max_length=2)]],
    ) -> None:
        self.every, self.zoom = every, zoom

    def check(self, outline: Outline) -> None:
        """Raise InputError if the dataset lacks a super-class in ``zoom``."""
        superclass_pairs(self.zoom, outline.about)

    def __call__(self, after: AfterRound) -> Measured:
        """The heatmap, and the figure of ``zoom``; nothing without prototypes."""
        found = prototype_similarity(after)
        if found is None or not after.ranks.is_first:
            return Measured()
        similarity, clients = found
        about, title = after.data.description, "Similarity of class prototypes"
        if clients:
            title += f",\nmean over {clients} clients' models"
        names = (about.classes, about.superclasses)
        figures = {"heatmap/prototype_similarity": similarity_heatmap(similarity, *names, title)}
        if pairs := superclass_pairs(self.zoom, about):
            zoom = similarity_zoom(similarity, *names, pairs, title)
            figures["heatmap/prototype_similarity_zoom"] = zoom
        return Measured(figures=figures)


def prototype_similarity(after: AfterRound) -> tuple[Tensor, int] | None:
    """The similarity of the class prototypes with which the method classifies after this round.

    It is the cosine of each pair of classes, [C, C] float64, with the number of clients' models of
    which it is the mean: 0 if it is the similarity in one model. The result is the first of these
    similarities that exists:

    * the similarity of the server's class vectors, if the personalization predicts with them;
    * the mean similarity in the clients' stored models, which are not tuned, if heads are private
      or there is no global model;
    * the similarity of the prototypes of the global model's head.

    It is None if there are no prototypes. Every process must call this function.
    """
    personalization = after.resources.personalization
    module = after.global_model()
    vectors = personalization.class_vectors()
    if vectors is None and _heads_are_private(after.resources):
        found = _mean_over_clients(after)
        if found:
            return found
        module = after.global_model()
    if vectors is None and personalization.has_global:
        vectors = module.head.prototypes()
    return None if vectors is None else (_similarity(vectors), 0)


def _similarity(vectors: Tensor) -> Tensor:
    """The cosine of each pair of rows of ``vectors`` [C, d], on the CPU."""
    vectors = vectors.detach().cpu()
    return cosines(vectors, vectors)


def _heads_are_private(resources: Resources) -> bool:
    heads = (n for n in resources.initial if n.startswith("head."))
    return not resources.personalization.has_global or not all(
        resources.personalization.shared(name) for name in heads
    )


def _mean_over_clients(after: AfterRound) -> tuple[Tensor, int] | None:
    """The mean similarity over clients' stored models, and their number; None if it is 0."""
    module, num_classes = after.resources.module, after.data.description.num_classes
    total, clients = torch.zeros(num_classes, num_classes, dtype=torch.float64), 0
    for _, weights in after.personal_models():
        module.load({n: w for n, w in weights.items() if n.startswith("head.")})
        if (vectors := module.head.prototypes()) is not None:
            total += _similarity(vectors)
            clients += 1
    gathered = after.ranks.all_gather((total, clients))
    clients = sum(number for _, number in gathered)
    if not clients:
        return None
    return torch.stack([own for own, _ in gathered]).sum(dim=0) / clients, clients
