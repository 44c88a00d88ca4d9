"""pFedSim: each client gets a mean of the bodies of clients whose classifiers are similar."""

import math
from collections.abc import Sequence
from itertools import combinations

import torch
import torch.nn.functional as F

from fedexp.config.compatibility.declaration import needs_trained_head
from fedexp.config.schema import Share
from fedexp.contract import Loss, Network, PartUpdate, Tensors
from fedexp.errors import InputError
from fedexp.personalization.after_warmup import AfterWarmup
from fedexp.personalization.client_models import weighted_mean

LARGEST = 0.9999
"""The similarity of a client to itself, and the largest one between two clients."""


class PFedSim(AfterWarmup):
    """Combines bodies by the similarity of the clients' classifiers (pFedSim; Tan et al., 2023).

    The first rounds are FedAvg's: the warm-up. Afterwards each client has a model of its own, which
    starts from the global model of the warm-up. The body is the backbone. The server sends client i
    its own head and the mean of the clients' bodies,

        $w_i = sum_j a_ij w_j / sum_j a_ij$, $a_ij = -ln(1 - s_ij)$.

    j runs over all clients, client i too. s_ij is the similarity of the heads' weight matrices of
    client i and client j: the mean over the classes of the cosines of their rows, and 0 if it is
    negative. It is computed when both are in one cohort, and is 0 before. s_ii and the largest s_ij
    are 0.9999; the released code leaves out this bound for s_ij, and has an infinite a_ij if two
    classifiers are equal. The released code is that of FL-bench, whose author is the paper's.

    After the warm-up the global model stays as it is. It is the start of clients that train for the
    first time then. It is not evaluated. Float buffers of the body are averaged like weights;
    integer buffers are the client's own. Rounds that leave the global weights as they were do not
    count as warm-up. The server stores N models; models that exceed ``clients.ram_gib`` are on
    disk.

    Args:
        warmup: the share of the run's rounds that are warm-up; their number is rounded down.
    """

    forbids = {
        **AfterWarmup.forbids,
        **needs_trained_head("has no trained weight matrix to compare clients by"),
    }
    saved = (*AfterWarmup.saved, "similarity")

    def __init__(self, warmup: Share) -> None:
        super().__init__(warmup)
        self.similarity: dict[int, dict[int, float]] = {}

    def create(self, network: Network, loss: Loss) -> None:
        """Find the head's weight matrices. Raises InputError if the head trains none."""
        parameters = network.head.named_parameters(prefix="head")
        self._matrices = [n for n, value in parameters if value.requires_grad and value.dim() > 1]
        if not self._matrices:
            raise InputError(
                "personalization=pfedsim: compares clients by the weight matrices of their heads, "
                "and this head trains none; use head=linear or head=cosine"
            )

    def mixture(self, client: int, own: Tensors) -> Tensors:
        """The client's mean of the clients' bodies."""
        row = self.similarity.get(client, {})
        shares = {other: -math.log(1 - s) for other, s in {client: LARGEST, **row}.items()}
        body = [n for n, w in own.items() if w.is_floating_point() and not n.startswith("head.")]
        return weighted_mean(self._stored, shares, body)

    def aggregate(self, updates: Sequence[PartUpdate]) -> None:
        """Store the cohort's models, and the similarities of these clients."""
        super().aggregate(updates)
        if self._is_warmup:
            return
        for one, other in combinations(updates, 2):
            found = similarity(*([each.extras[n] for n in self._matrices] for each in (one, other)))
            for i, j in ((one.client, other.client), (other.client, one.client)):
                self.similarity[i] = self.similarity.get(i, {}) | {j: found}


def similarity(one: Sequence[torch.Tensor], other: Sequence[torch.Tensor]) -> float:
    """The similarity s_ij of two heads: the mean cosine of the rows of their matrices.

    It is at least 0 and at most ``LARGEST``.
    """
    pairs = zip(one, other, strict=True)
    cosines = [F.cosine_similarity(a.flatten(1), b.flatten(1)) for a, b in pairs]
    return min(max(torch.cat(cosines).mean().item(), 0.0), LARGEST)
