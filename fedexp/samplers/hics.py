"""HiCS-FL (Chen and Vikalo): cohorts from clusters of clients with alike output-layer updates.

What local training does to the bias of the output layer tells how balanced a client's labels are:
the less balanced, the fewer entries it pushes up and the lower the entropy of its softmax. Clients
are clustered by these updates, and clusters of high entropy are drawn more often at first.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
import torch
import torch.nn.functional as F
from pydantic import Field, NonNegativeFloat, PositiveFloat, PositiveInt
from torch import Tensor

from fedexp.core.client_protocol import Client
from fedexp.core.description import Description
from fedexp.core.forward import Forward
from fedexp.core.messages import Tensors, Update
from fedexp.core.part import Memory, Setting
from fedexp.core.randomness import numpy_generator
from fedexp.errors import InputError
from fedexp.samplers.angles import angles_between
from fedexp.samplers.base import Sampler
from fedexp.samplers.clusters import LinkageOn, nearest_clusters, ward
from fedexp.samplers.correlation import spearman
from fedexp.samplers.figures import entropy_scatter, membership_heatmap

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LOGGER = logging.getLogger(__name__)

Signal = Literal["auto", "bias", "virtual_bias", "weight_rowmean"]

_BLOCK = 4096
"""Clients assigned to clusters at a time: bounds the memory of a large population."""

_SHOWN = 500
"""Clients in the history of memberships at most: as many as a picture can show."""


def estimated_entropy(bias_updates: Tensor, temperature: float) -> Tensor:
    """H_k = entropy(softmax(delta_b_k / temperature)) (HiCS-FL Eq. 7), in nats.

    Args:
        bias_updates: delta_b [N, C].
        temperature: positive; the smaller, the lower the estimates.

    Returns:
        [N] float64, 0 to ln C.
    """
    shares = torch.softmax(bias_updates.to(torch.float64) / temperature, dim=1)
    return _entropy(shares)


def pairwise_distance(bias_updates: Tensor, temperature: float, lam: float = 0.1) -> Tensor:
    """lam * arccos(cos(delta_b_u, delta_b_k)) + (1 - lam) * |H_u - H_k| (HiCS-FL Eq. 9).

    A zero vector has cosine 0 with every other; the distance of a client to itself is 0.

    Args:
        bias_updates: delta_b [N, C].
        temperature: of the entropies H.
        lam: weight of the angle, 0 to 1.

    Returns:
        [N, N] float64, symmetric.
    """
    distances = _distance_between(bias_updates, bias_updates, temperature, lam)
    return ((distances + distances.T) / 2).fill_diagonal_(0)


def cluster_probabilities(entropies: Tensor, clusters: Tensor, gamma: float) -> Tensor:
    """pi_m proportional to exp(gamma * mean H in cluster m) (HiCS-FL Eq. 10).

    Args:
        entropies: H [N].
        clusters: [N] int64 cluster of each client, any labels.
        gamma: 0 makes all clusters alike.

    Returns:
        pi [M] float64, in the order of the labels.
    """
    return torch.softmax(gamma * _cluster_means(entropies, clusters), dim=0)


def label_entropy(class_counts: Tensor) -> Tensor:
    """[N] float64: the entropy of each client's labels in nats, given [N, C] counts."""
    counts = class_counts.to(torch.float64)
    return _entropy(counts / counts.sum(dim=1, keepdim=True).clamp(min=1))


def draw_cohort(
    entropies: Tensor,
    clusters: Tensor,
    sizes: Tensor,
    gamma: float,
    cohort_size: int,
    generator: np.random.Generator,
) -> list[int]:
    """K different clients: each time a cluster by pi, then one of its clients not yet drawn.

    Within a cluster the odds are proportional to n_k. A cluster whose clients are all drawn drops
    out, and pi is renormalised over the others.

    Args:
        entropies: H [N].
        clusters: [N] int64 labels 0 to M-1, none empty.
        sizes: n_k [N], positive.
        gamma: as in ``cluster_probabilities``.
        cohort_size: K, at most N.
        generator: decides the draw.

    Returns:
        K numbers below N, in the order drawn.
    """
    # Arrival times of independent clocks with rates n_k: the order in which those of a cluster
    # ring is a draw without replacement proportional to n_k.
    arrivals = generator.exponential(size=len(sizes)) / sizes.numpy()
    queue = np.lexsort((arrivals, clusters.numpy()))
    left = np.bincount(clusters.numpy())
    ends = left.cumsum()
    means = _cluster_means(entropies, clusters)
    cohort = []
    for _ in range(cohort_size):
        available = np.flatnonzero(left)
        index = torch.from_numpy(available)
        odds = cluster_probabilities(means[index], index, gamma).numpy()
        cluster = generator.choice(available, p=odds)
        cohort.append(int(queue[ends[cluster] - left[cluster]]))
        left[cluster] -= 1
    return cohort


class HiCS(Sampler):
    """Clusters of clients with alike updates, drawn by their estimated label entropy.

    The first ceil(N / K) rounds visit every client once in random order; the last of them has a
    smaller cohort if K does not divide N. N is the number of clients with data. After that all are
    clustered each round by the last signal that the server knows of each. A client whose update
    never came in has a zero signal: the largest entropy there is, so that it is soon asked again.
    Signals that are not finite are not taken in.

    Args:
        signal: what stands for the update delta_b of the output layer's bias. ``bias``: the update
            itself, read from the weights that travel anyway. ``virtual_bias``: what plain SGD would
            do to a bias, measured in the client's ordinary steps; for every head, and C numbers
            more to upload. ``weight_rowmean``: the row means of the update of the head's weight
            matrix, from the weights that travel anyway. ``auto``: ``bias`` where the head has one
            that is trained and shared, else ``virtual_bias``.
        temperature: of the softmax in the entropy; it should have the size of the updates.
        lam: weight of the angle in the distance; the entropy has 1 - lam.
        gamma_0: how strongly high entropy is preferred at first; gamma_t = gamma_0 (1 - t/T).
        clusters: M; None is K.
        linkage_on: as in ``ward``; the paper's released code takes ``rows``.
        exact_up_to: with more clients than this only ``landmarks`` of them are clustered, drawn
            anew each round, and the others join the cluster they are nearest to.
        landmarks: how many; at least M.
    """

    def __init__(
        self,
        signal: Signal,
        temperature: PositiveFloat,
        lam: Annotated[float, Field(ge=0, le=1)],
        gamma_0: NonNegativeFloat,
        clusters: PositiveInt | None,
        linkage_on: LinkageOn,
        exact_up_to: PositiveInt,
        landmarks: PositiveInt,
    ) -> None:
        self.signal, self.temperature, self.lam, self.gamma_0 = signal, temperature, lam, gamma_0
        self.clusters, self.linkage_on = clusters, linkage_on
        self.exact_up_to, self.landmarks = exact_up_to, landmarks

    def setup(self, setting: Setting) -> None:
        """Find the signal in this head, and room for one of each client."""
        super().setup(setting)
        self.rounds = setting.rounds
        self.true_entropies = label_entropy(setting.class_counts)
        self.source = _find_source(self.signal, setting)
        self.num_clusters = self.clusters or self.cohort_size
        self.warm_up = math.ceil(len(self.eligible) / self.cohort_size)
        self.signals = torch.zeros(setting.num_clients, setting.num_classes)
        step = math.ceil(setting.num_clients / _SHOWN)
        self.shown = torch.arange(0, setting.num_clients, step)
        self.memberships: dict[int, Tensor] = {}
        self._num_found: int | None = None
        self._check_landmarks()

    # The server's half.

    def select(self, round: int) -> list[int]:
        """Everyone in turn at first, then a draw by clusters; keyed by the round."""
        self._num_found = None
        if round <= self.warm_up:
            order = numpy_generator(self.seed, "warm_up").permutation(self.eligible)
            last = round * self.cohort_size
            return sorted(order[last - self.cohort_size : last].tolist())
        signals = self.signals[self.eligible]
        entropies = estimated_entropy(signals, self.temperature)
        clusters = _by_mean_entropy(self._cluster(signals, round), entropies)
        self._remember(round, clusters)
        cohort = draw_cohort(
            entropies,
            clusters,
            torch.from_numpy(self.sizes),
            self.gamma(round),
            self.cohort_size,
            numpy_generator(self.seed, "sampler", round),
        )
        return sorted(self.eligible[cohort].tolist())

    def gamma(self, round: int) -> float:
        """gamma_t = gamma_0 (1 - t/T), never negative."""
        return self.gamma_0 * max(0.0, 1 - round / self.rounds)

    def extract(self, update: Update, current: Tensors) -> Tensors:
        """The signal, where it is in the weights: local minus global."""
        if self.source is None:
            return {}
        step = (update.weights[self.source] - current[self.source]).float()
        return {"signal": step if step.dim() == 1 else step.mean(dim=1)}

    def aggregate(self, updates: Sequence[Update]) -> None:
        """The cohort's signals replace those known so far."""
        super().aggregate(updates)
        for update in updates:
            signal = update.extras["sampler"]["signal"]
            if signal.isfinite().all():
                self.signals[update.client] = signal.cpu()

    def metrics(self) -> dict[str, float]:
        """How many clusters there were, and how well the estimates order the clients heard of.

        ``sampler/entropy_spearman`` compares with the true label entropies, which a real server
        would not know.
        """
        found = {} if self._num_found is None else {"sampler/clusters": float(self._num_found)}
        rho = spearman(*self._entropies())
        return found if rho is None else found | {"sampler/entropy_spearman": rho}

    def server_state(self) -> dict[str, Any]:
        """The last known signals, and the history for the picture."""
        mine = {"signals": self.signals.clone(), "memberships": dict(self.memberships)}
        return super().server_state() | mine

    def load_server_state(self, state: dict[str, Any]) -> None:
        """Inverse of ``server_state``."""
        super().load_server_state(state)
        self.signals, self.memberships = state["signals"].clone(), dict(state["memberships"])

    def figures(self, memories: Mapping[int, Memory], about: Description) -> dict[str, Figure]:
        """Also: estimated against true entropy, and who was in which cluster when."""
        figures = super().figures(memories, about)
        true, estimated = self._entropies()
        if len(true):
            figures["sampler/entropy"] = entropy_scatter(true, estimated)
        if self.memberships:
            figures["sampler/membership"] = membership_heatmap(self.memberships, self.shown)
        return figures

    # The client's half.

    def measure(self, batch: Forward) -> Tensors:
        """With ``virtual_bias``: minus the cross-entropy's gradient for a bias, [C]."""
        if self.source is not None:
            return {}
        shares = torch.softmax(batch.logits.float(), dim=1)
        return {"residual": batch.mean(F.one_hot(batch.targets, shares.shape[1]) - shares)}

    def report(self, client: Client, memory: Memory) -> Tensors:
        """With ``virtual_bias``: the learning rate times the sum of what was measured, [C]."""
        if self.source is not None:
            return {}
        return {"signal": client.learning_rate * client.measured["sampler"]["residual"]}

    def _cluster(self, signals: Tensor, round: int) -> Tensor:
        """The cluster of each client with data: exact, or by landmarks if there are many."""
        if len(signals) <= self.exact_up_to:
            return self._ward(signals)
        draw = numpy_generator(self.seed, "landmarks", round)
        chosen = draw.choice(len(signals), min(self.landmarks, len(signals)), replace=False)
        landmarks = signals[chosen]
        labels = self._ward(landmarks)
        blocks = (
            _distance_between(block, landmarks, self.temperature, self.lam)
            for block in torch.split(signals, _BLOCK)
        )
        clusters = torch.cat([nearest_clusters(block, labels) for block in blocks])
        clusters[chosen] = labels
        return clusters

    def _ward(self, signals: Tensor) -> Tensor:
        distances = pairwise_distance(signals, self.temperature, self.lam)
        return ward(distances, self.num_clusters, self.linkage_on)

    def _remember(self, round: int, clusters: Tensor) -> None:
        """Keep for the picture who is in which cluster; -1 stands for a client without data."""
        everyone = torch.full((len(self.signals),), -1, dtype=torch.int32)
        everyone[self.eligible] = clusters.to(torch.int32)
        self.memberships[round] = everyone[self.shown]
        self._num_found = int(clusters.max()) + 1

    def _entropies(self) -> tuple[Tensor, Tensor]:
        """True and estimated label entropies of the clients heard of."""
        heard = self.times_chosen > 0
        estimated = estimated_entropy(self.signals[heard], self.temperature)
        return self.true_entropies[heard], estimated

    def _check_landmarks(self) -> None:
        clients = len(self.eligible)
        if clients <= self.exact_up_to:
            return
        if self.landmarks < self.num_clusters:
            raise InputError(
                f"sampler.landmarks={self.landmarks}: must be at least the number of clusters, "
                f"{self.num_clusters}, when more than sampler.exact_up_to={self.exact_up_to} "
                f"clients have data"
            )
        LOGGER.warning(
            "sampler=hics: %d clients with data are more than sampler.exact_up_to=%d; each round "
            "clusters %d of them, and the others join the nearest cluster",
            clients,
            self.exact_up_to,
            min(self.landmarks, clients),
        )


def _entropy(shares: Tensor) -> Tensor:
    """[N] nats of each row of ``shares`` [N, C]; a share of 0 adds nothing."""
    entropies: Tensor = torch.special.entr(shares).sum(dim=1)
    return entropies


def _distance_between(rows: Tensor, columns: Tensor, temperature: float, lam: float) -> Tensor:
    """Eq. 9 for each of ``rows`` [n, C] with each of ``columns`` [m, C]: [n, m] float64."""
    first, second = (estimated_entropy(updates, temperature) for updates in (rows, columns))
    gaps = (first.unsqueeze(1) - second).abs_()
    return angles_between(rows, columns).mul_(lam).add_(gaps, alpha=1 - lam)


def _cluster_means(entropies: Tensor, clusters: Tensor) -> Tensor:
    """[M] float64: the mean of ``entropies`` [N] in each cluster, in the order of the labels."""
    _, cluster = torch.unique(clusters, return_inverse=True)
    means: Tensor = cluster.bincount(entropies.to(torch.float64)) / cluster.bincount()
    return means


def _by_mean_entropy(clusters: Tensor, entropies: Tensor) -> Tensor:
    """The same clusters [N], numbered by their mean entropy: what a number means then lasts."""
    return _cluster_means(entropies, clusters).argsort(stable=True).argsort()[clusters]


def _find_source(signal: Signal, setting: Setting) -> str | None:
    """The weight whose update is the signal; None where clients measure a virtual bias.

    Raises:
        InputError: the head has no such weight.
    """
    shapes, num_classes = setting.parameter_shapes, setting.num_classes
    shared = [name for name in shapes if name.startswith("head.") and name in setting.shared]
    biases = [n for n in shared if n.endswith("bias") and tuple(shapes[n]) == (num_classes,)]
    matrices = [n for n in shared if len(shapes[n]) == 2 and shapes[n][0] == num_classes]
    if signal == "virtual_bias" or (signal == "auto" and not biases):
        return None
    wanted, found = ("weight matrix", matrices) if signal == "weight_rowmean" else ("bias", biases)
    if not found:
        raise InputError(
            f"sampler.signal={signal}: this head has no {wanted} over the classes that is trained "
            f"and shared; should be auto or virtual_bias"
        )
    return found[0]
