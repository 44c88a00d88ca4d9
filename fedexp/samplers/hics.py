"""HiCS-FL (Chen and Vikalo): cohorts from clusters of clients with similar output-layer updates.

The update of the output layer's bias in local training tells how balanced a client's labels are:
the less balanced, the fewer entries grow, and the lower the entropy of their softmax. Clients are
clustered by these updates, and clusters of high entropy are drawn more often at first.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
import torch
from pydantic import Field, NonNegativeFloat, PositiveFloat, PositiveInt
from torch import Tensor

from fedexp.compatibility.traits import DRAWS_BY_SIZE
from fedexp.core.client_protocol import Client
from fedexp.core.description import Description
from fedexp.core.forward import Forward
from fedexp.core.messages import PartUpdate, Tensors
from fedexp.core.part import Memory, Setting
from fedexp.core.randomness import numpy_generator
from fedexp.drawing.shown_clients import evenly_spaced
from fedexp.samplers.base import MOST_SHOWN, Sampler
from fedexp.samplers.client_clusters import ClientClusters
from fedexp.samplers.clusters import LinkageOn
from fedexp.samplers.correlation import spearman
from fedexp.samplers.entropy_figures import entropy_bars, entropy_scatter, membership_heatmap
from fedexp.samplers.heterogeneity import (
    Profiles,
    by_mean_entropy,
    draw_cohort,
    estimated_entropy,
    label_entropy,
)
from fedexp.samplers.signals import SignalName, find_signal, flat_update, head_weights

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class HiCS(Sampler):
    """Clusters of clients with similar updates, drawn by their estimated label entropy.

    The first ceil(N / K) rounds select every client once; the last of them has a smaller cohort if
    K does not divide N. N is the number of clients with data. After that, all clients are clustered
    in each round by the signals that the server has. A client whose update never arrived has a zero
    signal, which has the largest entropy, so that it is likely to be selected soon. A signal that
    is not finite is ignored.

    A large population is never through with these rounds: ``warm_up_rounds`` ends them sooner. The
    clients that have not been selected by then have zero signals and so are all the same, one
    cluster (or a part of one) that the draws explore. They cost some passes over N numbers; the
    rest of a round's time is that of the clients that have been heard: up to ``exact_up_to``, about
    their number cubed, and beyond it their number times ``landmarks``.

    Memory at the server: N C numbers; with ``angle_on=head`` also N D, D the size of the head.

    Args:
        signal: what stands for the update delta_b of the output layer's bias. ``bias``: the update
            itself, read from the weights that are sent. ``virtual_bias``: the update that
            plain SGD would give a bias, measured in the client's ordinary steps; for every head, at
            the cost of C more numbers in the upload. ``weight_rowmean``: the row means of the
            update of the head's weight matrix, from the weights that are sent (released code).
            ``auto``: ``bias`` where the head has one that is trained and shared, else
            ``virtual_bias``. ``labels``: an oracle, which no real server has: the signal is the
            client's class counts, and the entropy is that of its labels. Nothing is estimated;
            cohorts depend on training only through ``angle_on=head``.
        temperature: of the softmax in the entropy; it should have the magnitude of the updates.
            ``signal=labels`` has no softmax.
        lam: weight of the angle in the distance; the entropy has 1 - lam.
        gamma_0: how strongly high entropy is preferred at first; gamma_t = gamma_0 (1 - t/T).
        clusters: M; None is K.
        linkage_on: as in ``ward``; the released code uses ``rows``.
        exact_up_to: with more clients than this, only ``landmarks`` of them are clustered, drawn
            anew each round; each of the others joins the nearest cluster.
        landmarks: how many; at least M.
        warm_up_rounds: the most rounds that select every client once; None is ceil(N / K), as in
            the paper.
        refresh: when a client's signal is replaced. ``always``: each time an update of the client
            arrives (Alg. 1, line 18). ``warm_up``: never again after the first one, which comes in
            the warm-up unless it was lost (released code).
        warm_up_order: the order of the clients in the first rounds: ``random``, or ``client`` by
            number (released code).
        angle_on: the vectors whose angles count in the distance. ``signal``: the signals.
            ``head``: the updates of the head's weight matrix and bias together (released code).
    """

    traits = frozenset({DRAWS_BY_SIZE})

    def __init__(
        self,
        signal: SignalName,
        temperature: PositiveFloat,
        lam: Annotated[float, Field(ge=0, le=1)],
        gamma_0: NonNegativeFloat,
        clusters: PositiveInt | None,
        linkage_on: LinkageOn,
        exact_up_to: PositiveInt,
        landmarks: PositiveInt,
        refresh: Literal["always", "warm_up"],
        warm_up_rounds: PositiveInt | None,
        warm_up_order: Literal["random", "client"],
        angle_on: Literal["signal", "head"],
    ) -> None:
        self.signal, self.temperature, self.lam, self.gamma_0 = signal, temperature, lam, gamma_0
        self.clusters, self.linkage_on = clusters, linkage_on
        self.exact_up_to, self.landmarks = exact_up_to, landmarks
        self.refresh, self.warm_up_order, self.angle_on = refresh, warm_up_order, angle_on
        self.most_warm_up_rounds = warm_up_rounds

    def setup(self, setting: Setting) -> None:
        """Find the signal in this head. Raises InputError: it has none, or too few landmarks."""
        super().setup(setting)
        self.rounds = setting.rounds
        self.classes_of = setting.classes_of
        self.true_entropies = torch.full((setting.num_clients,), torch.nan, dtype=torch.float64)
        if setting.class_counts is not None:
            self.true_entropies = label_entropy(setting.class_counts)
        self.source = find_signal(self.signal, setting)
        self.head_names = head_weights(setting) if self.angle_on == "head" else []
        all_rounds = math.ceil(len(self.eligible) / self.cohort_size)
        self.warm_up_rounds = min(self.most_warm_up_rounds or all_rounds, all_rounds)
        self.order = self._warm_up_order()
        self.cluster = ClientClusters(
            self.clusters or self.cohort_size,
            self.lam,
            self.linkage_on,
            self.exact_up_to,
            self.landmarks,
        )
        self.cluster.check(len(self.eligible))
        head_size = sum(setting.parameter_shapes[name].numel() for name in self.head_names)
        self.signals = torch.zeros(setting.num_clients, setting.num_classes)
        if self.signal == "labels":
            self.signals = setting.all_class_counts("sampler.signal=labels").float()
        self.head_updates = torch.zeros(setting.num_clients, head_size)
        # In the pictures, and so in the history of clusters.
        self.shown = evenly_spaced(torch.arange(setting.num_clients), MOST_SHOWN)
        self.memberships: dict[int, Tensor] = {}
        self._clusters_found: int | None = None

    # The server's half.

    def select(self, round: int) -> list[int]:
        """Each client once in the warm-up, then a draw by clusters; keyed by the round."""
        self._clusters_found = None
        if round <= self.warm_up_rounds:
            last = round * self.cohort_size
            return sorted(self.order[last - self.cohort_size : last].tolist())
        entropies, clusters = self._clustered(numpy_generator(self.seed, "landmarks", round))
        self._record_clusters(round, clusters)
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

    def extract(self, weights: Tensors, current: Tensors) -> Tensors:
        """What is read from the weights: the signal, and the head's update if angles need it."""
        found = self.source.extract(weights, current)
        if self.head_names:
            found["head_update"] = flat_update(weights, current, self.head_names)
        return found

    def aggregate(self, updates: Sequence[PartUpdate]) -> None:
        """Store the signals of the cohort."""
        super().aggregate(updates)
        for update in updates:
            self._store(update.client, update.extras)

    def metrics(self) -> dict[str, float]:
        """How many clusters there were, and how well the estimates rank the clients.

        ``sampler/entropy_spearman`` compares them with the true label entropies, which a real
        server would not know.
        """
        found = {}
        if self._clusters_found is not None:
            found["sampler/clusters"] = float(self._clusters_found)
        rho = spearman(*self._entropies(self.times_chosen > 0))
        return found if rho is None else found | {"sampler/entropy_spearman": rho}

    def server_state(self) -> dict[str, Any]:
        """The signals, and the history of the clusters for the picture."""
        state = {"signals": self.signals.clone(), "memberships": dict(self.memberships)}
        if self.head_names:
            state["head_updates"] = self.head_updates.clone()
        return super().server_state() | state

    def load_server_state(self, state: dict[str, Any]) -> None:
        """Inverse of ``server_state``."""
        super().load_server_state(state)
        self.signals, self.memberships = state["signals"].clone(), dict(state["memberships"])
        if self.head_names:
            self.head_updates = state["head_updates"].clone()

    def figures(self, memories: Mapping[int, Memory], about: Description) -> dict[str, Figure]:
        """Also: estimated and true entropies, and the cluster of each client in each round."""
        figures = super().figures(memories, about)
        chosen = self.times_chosen > 0
        known = chosen.nonzero().flatten()
        if len(known):
            figures["sampler/entropy"] = entropy_scatter(known, *self._entropies(known))
        shown = self.shown[chosen[self.shown]]
        if len(shown):
            figures["sampler/entropy_bars"] = entropy_bars(shown, *self._entropies(shown))
        if self.memberships:
            figures["sampler/membership"] = membership_heatmap(self.memberships, self.shown)
        return figures

    # The client's half.

    def measure(self, batch: Forward) -> Tensors:
        """What the signal needs of one batch; see ``signals``."""
        return self.source.measure(batch)

    def report(self, client: Client, memory: Memory) -> Tensors:
        """The signal [C], if it is not in the weights."""
        return self.source.report(client, client.measured(self))

    def _warm_up_order(self) -> np.ndarray:
        """[n] all clients with data, in the order of their first selection."""
        if self.warm_up_order == "client":
            return self.eligible
        return numpy_generator(self.seed, "warm_up").permutation(self.eligible)

    def _clustered(self, generator: np.random.Generator) -> tuple[Tensor, Tensor]:
        """Estimated entropy [n] and cluster [n] of the clients with data."""
        known = torch.ones(len(self.eligible), dtype=torch.bool)
        if len(known) > self.exact_up_to:
            known = self.signals.any(dim=1)[self.eligible]
            if self.head_names:
                known |= self.head_updates.any(dim=1)[self.eligible]
        number = len(known) - int(known.sum())
        profiles = self._profiles(self.eligible[known.numpy()] if number else None)
        if not number:
            return profiles.entropies, self.cluster(profiles, generator)
        zero = torch.zeros(1, self.signals.shape[1])
        unknown = Profiles(self._estimates(zero), torch.zeros(1, profiles.updates.shape[1]))
        found = self.cluster.beside_unknown(profiles, unknown, number, generator)
        entropies = unknown.entropies.repeat(len(known))
        entropies[known] = profiles.entropies
        clusters = found[-1:].repeat(len(known))
        clusters[known] = found[:-1]
        return entropies, by_mean_entropy(entropies, clusters)

    def _profiles(self, clients: np.ndarray | None = None) -> Profiles:
        """Of these clients [n], by default those with data."""
        clients = self.eligible if clients is None else clients
        signals = self.signals[clients]
        updates = self.head_updates[clients] if self.head_names else signals
        return Profiles(self._estimates(signals), updates)

    def _estimates(self, signals: Tensor) -> Tensor:
        """[n] the entropies that the server takes for those of the labels, from [n, C] signals."""
        if self.signal == "labels":
            return label_entropy(signals)
        return estimated_entropy(signals, self.temperature)

    def _store(self, client: int, extracted: Tensors) -> None:
        """Replace what is stored of a client, unless it is not finite or must not be refreshed."""
        stored = self.head_updates if self.head_names else self.signals
        if self.refresh == "warm_up" and stored[client].any():
            return
        if not all(value.isfinite().all() for value in extracted.values()):
            return
        if "signal" in extracted:
            self.signals[client] = extracted["signal"].cpu()
        if self.head_names:
            self.head_updates[client] = extracted["head_update"].cpu()

    def _record_clusters(self, round: int, clusters: Tensor) -> None:
        """Keep the clusters for the picture; -1 stands for a client without data."""
        everyone = torch.full((len(self.signals),), -1, dtype=torch.int32)
        everyone[self.eligible] = clusters.to(torch.int32)
        self.memberships[round] = everyone[self.shown]
        self._clusters_found = int(clusters.max()) + 1

    def _entropies(self, clients: Tensor) -> tuple[Tensor, Tensor]:
        """True and estimated label entropies of these clients, a mask [N] or numbers [n]."""
        true = self.true_entropies[clients]
        if true.isnan().any():  # a client whose classes have not been counted yet
            numbers = clients.nonzero().flatten() if clients.dtype == torch.bool else clients
            new = numbers[true.isnan()]
            self.true_entropies[new] = label_entropy(self.classes_of(new))
            true = self.true_entropies[clients]
        return true, self._estimates(self.signals[clients])
