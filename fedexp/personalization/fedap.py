"""FedAP: private BatchNorm layers, and means of the clients' other weights by their statistics."""

from collections.abc import Sequence

import torch

from fedexp.config.schema import Share
from fedexp.contract import Client, Loss, Memory, Network, PartUpdate, Tensors
from fedexp.errors import InputError
from fedexp.personalization.after_warmup import AfterWarmup
from fedexp.personalization.client_models import weighted_mean
from fedexp.personalization.private_norm import USE_BATCH_NORM, norm_weights

_LEAST_DISTANCE = 1e-14
"""The smallest distance between two clients, as in the authors' code."""

_MEAN, _VARIANCE = "running_mean", "running_var"


class FedAP(AfterWarmup):
    """Mixes models by the distance of the clients' BatchNorm statistics (Lu et al., 2022).

    BatchNorm layers are private. In the warm-up all other weights are averaged, as in FedBN.
    Afterwards each client has a model of its own, which starts from the global model of the
    warm-up. The server sends client i the mean of the clients' other weights,

        $own w_i + (1 - own) sum_j a_ij w_j$, $a_ij = (1 / d_ij) / sum_k (1 / d_ik)$,

    where j and k run over the other clients with a model. The distance d_ij is the sum over the
    BatchNorm layers of $sqrt(||mean_i - mean_j||^2 + ||std_i - std_j||^2)$. mean_i and std_i of a
    layer are client i's running mean and standard deviation after its last turn in the warm-up, or
    else after its first turn.

    This is the paper's variant f-FedAP. In FedAP and d-FedAP a model that was trained beforehand,
    on the server's data or a share of the clients' data, replaces the warm-up, and gives the
    statistics. FL-bench computes the statistics by a pass over the clients' data after the warm-up.

    The server stores N models and the statistics; models that exceed ``clients.ram_gib`` are on
    disk.

    Args:
        warmup: the share of the run's rounds that are warm-up; their number is rounded down.
        own: the share of the client's own model.
    """

    saved = (*AfterWarmup.saved, "statistics")

    def __init__(self, warmup: Share, own: Share) -> None:
        super().__init__(warmup)
        self.own = own
        self.statistics: dict[int, Tensors] = {}

    def create(self, network: Network, loss: Loss) -> None:
        """Find the weights and running statistics of BatchNorm layers.

        Raises InputError if there are none.
        """
        self._private = frozenset(norm_weights(network, "layers"))
        statistics = norm_weights(network, "statistics")
        self._reported = [n for n in statistics if n.endswith((_MEAN, _VARIANCE))]
        if not self._reported:
            raise InputError(
                f"personalization=fedap: compares running statistics of BatchNorm; {USE_BATCH_NORM}"
            )

    def shared(self, name: str) -> bool:
        """Whether the weight is shared: all weights are, except those of BatchNorm layers."""
        return name not in self._private

    def report(self, client: Client, memory: Memory) -> Tensors:
        """The running means and variances of the BatchNorm layers."""
        return {name: client.weights[name].clone() for name in self._reported}

    def aggregate(self, updates: Sequence[PartUpdate]) -> None:
        """Store the cohort's models and statistics."""
        super().aggregate(updates)
        for update in updates:
            if self._is_warmup or update.client not in self.statistics:
                own = {name: update.extras[name].cpu() for name in self._reported}
                self.statistics = self.statistics | {update.client: own}

    def mixture(self, client: int, own: Tensors) -> Tensors:
        """The mean of the clients' weights; integer buffers are the client's own."""
        statistics = self.statistics[client]
        near = {
            other: 1 / max(distance(statistics, self.statistics[other]), _LEAST_DISTANCE)
            for other in self._stored
            if other != client
        }
        total = sum(near.values())
        shares = {other: (1 - self.own) * each / total for other, each in near.items()}
        floats = [name for name, weight in own.items() if weight.is_floating_point()]
        return weighted_mean(self._stored, {client: self.own, **shares}, floats)


def distance(one: Tensors, other: Tensors) -> float:
    """The distance d_ij of two clients' statistics, summed over the layers.

    The tensors are called ``LAYER.running_mean`` and ``LAYER.running_var``.
    """
    found = 0.0
    for name in (name for name in one if name.endswith(_MEAN)):
        variance = name.removesuffix(_MEAN) + _VARIANCE
        means = (one[name] - other[name]).double()
        deviations = one[variance].double().sqrt() - other[variance].double().sqrt()
        found += torch.cat([means, deviations]).norm().item()
    return found
