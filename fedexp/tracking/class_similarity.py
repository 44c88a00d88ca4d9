"""How similar the prototypes of the classes are, in the global model or in the clients' models."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from fedexp.core.messages import Message
from fedexp.distributed.ranks import Ranks
from fedexp.engines.resources import Resources


@dataclass(frozen=True)
class ClassSimilarity:
    """Every pair of classes compared.

    Attributes:
        cosines: [C, C] float64.
        angles: [C, C] in degrees, float64.
        clients: the number of clients whose models these are means over; 0 for one model.
    """

    cosines: Tensor
    angles: Tensor
    clients: int = 0


def pairwise_similarity(vectors: Tensor) -> ClassSimilarity:
    """Cosines and angles between the rows of ``vectors`` [C, d], in float64.

    A zero vector has cosine 0, and so 90 degrees, with every vector.
    """
    units = F.normalize(vectors.detach().cpu().double(), dim=1)
    cosines = (units @ units.T).clamp(-1, 1)
    return ClassSimilarity(cosines, torch.rad2deg(torch.arccos(cosines)))


def prototype_similarity(
    resources: Resources, ranks: Ranks, message: Message
) -> ClassSimilarity | None:
    """Of the prototypes that classify after this round, compared at the first rank.

    These are, in this order: the server's own class vectors, if the personalization predicts with
    such; the mean over the clients' kept models of each model's cosines and angles, if heads are
    private or there is no global model; the global model's head.

    Args:
        resources: the model and the clients' states.
        ranks: the processes; all of them must call this.
        message: the global model.

    Returns:
        None if there are no such vectors.
    """
    personalization = resources.personalization
    module = resources.load_global(message)
    vectors = personalization.class_vectors()
    if vectors is None and _heads_are_private(resources):
        found = _mean_over_clients(resources, ranks)
        if found:
            return found
        module = resources.load_global(message)
    if vectors is None and personalization.has_global:
        vectors = module.head.prototypes()
    return None if vectors is None else pairwise_similarity(vectors)


def _heads_are_private(resources: Resources) -> bool:
    heads = (n for n in resources.initial if n.startswith("head."))
    return not resources.personalization.has_global or not all(
        resources.personalization.shared(name) for name in heads
    )


def _mean_over_clients(resources: Resources, ranks: Ranks) -> ClassSimilarity | None:
    """The mean of the similarities in the clients' kept models; None if no model is kept."""
    module, store = resources.module, resources.store
    num_classes = resources.data.description.num_classes
    total, clients = torch.zeros(2, num_classes, num_classes, dtype=torch.float64), 0
    for client in store.clients_with_model:
        module.load({n: w for n, w in store.model(client).items() if n.startswith("head.")})
        if (vectors := module.head.prototypes()) is not None:
            found = pairwise_similarity(vectors)
            total += torch.stack([found.cosines, found.angles])
            clients += 1
    gathered = ranks.all_gather((total, clients))
    clients = sum(number for _, number in gathered)
    if not clients:
        return None
    cosines, angles = torch.stack([own for own, _ in gathered]).sum(dim=0) / clients
    return ClassSimilarity(cosines, angles, clients)
