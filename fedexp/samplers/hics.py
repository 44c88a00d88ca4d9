"""HiCS-FL (Chen and Vikalo, arXiv 2310.00198): cohorts from clusters of similar clients.

Local training updates the bias of the output layer. This update shows how balanced a client's
labels are. If the labels are unbalanced, few entries of the bias grow, and the softmax of the
update has a low entropy. Clients with similar updates are in the same cluster. In early rounds,
clusters with high entropy are drawn more often.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Literal

import numpy as np
import torch
from pydantic import Field, NonNegativeFloat, PositiveFloat, PositiveInt
from torch import Tensor

from fedexp.config.compatibility.traits import (
    DRAWS_BY_SIZE,
    HEAD_LEAVES_OUT_CLASSES,
    LEAVES_OUT_CLASSES,
    MIXES_LATE,
    READS_ROUNDS,
    SHORTENS_STEPS,
    TAKES_STALE,
)
from fedexp.contract import Client, Forward, Memory, PartUpdate, Setting, Tensors
from fedexp.core.description import Description
from fedexp.core.randomness import numpy_generator
from fedexp.drawing.shown_clients import evenly_spaced
from fedexp.samplers.base import COMPARES_STEPS, MOST_SHOWN, Sampler
from fedexp.samplers.client_clusters import ClientClusters
from fedexp.samplers.clusters import LinkageOn
from fedexp.samplers.heterogeneity import (
    Profiles,
    Scale,
    by_mean_entropy,
    draw_cohort,
    estimated_entropy,
    label_entropy,
    spearman,
)
from fedexp.samplers.signals import SignalName, find_signal, flat_update, head_weights

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LOGGER = logging.getLogger(__name__)

_WITH_BIAS = "sampler.signal=auto with a head that has one trained and shared bias"
_SHORTENED = (
    "sampler=hics: staleness shortens the updates that tell the clients' entropies, so that late "
    "clients look balanced; use sampler=hics_scale_free or coordination.staleness=constant"
)
_MIXED = (
    "sampler=hics: the update of a late client also has what the server moved in the meantime, "
    "which says nothing of the client's labels; use coordination.step_from=received"
)
_ZERO = (
    "sampler=hics: with this {other} the update of a client with a single class is zero, like that "
    "of balanced data; use sampler.signal=class_counts"
)

_SMALL_FOR_UNIT_VECTORS = 0.02
"""With lower temperatures the softmax of a vector of norm 1 nearly always has one large entry."""


class HiCS(Sampler):
    """Clusters clients with similar updates, and prefers clusters with high label entropy.

    A client's signal is a vector of C numbers that describes its local training: the update of the
    output layer's bias, or a substitute. The first ceil(N / K) rounds are the warm-up, which
    selects every client one time. N is the number of clients with data. If K does not divide N, the
    last round of the warm-up has a smaller cohort. A client that is not available in its round is
    selected in a later round of the warm-up, if it is available then. After the warm-up, each round
    clusters all clients by their latest signals. A client whose update never arrived has a zero
    signal. The entropy of a zero signal is the largest possible, so such a client is likely to be
    selected soon. A signal that is not finite is ignored. With ``coordination=buffered`` a later
    round selects fewer than K clients, so the warm-up does not reach every client.

    In a large population ``warm_up_rounds`` should end the warm-up earlier. The clients that the
    warm-up did not select have equal signals, all zero, so these clients are in one cluster. They
    add only a few passes over N numbers to each round. The remaining time of a round grows with the
    number n of other clients: with n^3 up to ``exact_up_to`` clients (with n^2 if ``linkage_on`` is
    ``condensed``), then with n times ``landmarks``.

    The server needs memory for N C numbers. With ``angle_on=head`` it needs N D numbers more, where
    D is the number of weights in the head.

    Args:
        signal: the kind of signal. The paper uses delta_b, the update of the output layer's bias.
            ``bias``: the server computes delta_b from the sent weights.
            ``virtual_bias``: the client computes the update that plain SGD would give a bias. This
            works with every head and adds C numbers to the upload.
            ``weight_rowmean`` (released code): the server computes the row means of the update of
            the head's weight matrix.
            ``class_counts``: clients send their class counts, C numbers. FedNH's and FedSC's
            clients send their class counts anyway. The entropy is then exact.
            ``auto``: ``bias`` if the head has one trained and shared bias, else ``class_counts``.
            ``labels``: the server is an oracle that knows the class counts of all clients from the
            start. Cohorts then depend on training only with ``angle_on=head``.
        temperature: temperature of the softmax in the entropy. It should be as large as typical
            entries of the updates. Class counts and ``labels`` do not use it.
        scale: with ``fixed``, as in the paper, all updates have the same temperature. When the
            norms of the updates become small, all clients look balanced. With ``client`` each
            update is first divided by its norm, so the estimate does not depend on the norm; see
            ``estimated_entropy``. This needs a larger ``temperature``; ``hics_scale_free`` has 0.2.
        lam: weight of the angle in the distance; the difference of entropies has weight 1 - lam.
        gamma_0: initial preference for high entropy. In round t of T the preference is
            gamma_0 (1 - t/T).
        clusters: M, the number of clusters, or None for K clusters.
        linkage_on: the input of Ward's method, see ``ward``. The released code uses ``rows``.
        exact_up_to: the largest number of clients that are all clustered. If there are more
            clients, each round draws a random sample of clients, the landmarks, and clusters these.
            Every other client joins the nearest cluster.
        landmarks: number of landmarks, at least M.
        warm_up_rounds: limit on the warm-up rounds. If None, the warm-up has ceil(N / K) rounds, as
            in the paper.
        refresh: when to replace a client's signal. With ``always`` each update of the client
            replaces the signal (Alg. 1, line 18). With ``warm_up`` (released code) the signal of
            the client's first update is kept. The first update comes in the warm-up unless it was
            lost.
        warm_up_order: order of the clients in the warm-up. With ``random`` the order is random.
            With ``client`` (released code) clients are in the order of their numbers.
        angle_on: the vectors between which the angle in the distance is measured. With ``signal``
            they are the clients' signals. With ``head`` (released code) a client's vector is the
            update of the head's weight matrix and bias together.
    """

    unread_if = {
        "temperature": {"signal": ("class_counts", "labels")},
        "scale": {"signal": ("class_counts", "labels")},
    }

    saved: tuple[str, ...] = ("times_chosen", "signals", "memberships")
    traits = frozenset({DRAWS_BY_SIZE, READS_ROUNDS, TAKES_STALE})

    def __init__(
        self,
        signal: SignalName,
        temperature: PositiveFloat,
        scale: Scale,
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
        self.scale = scale
        self.refresh, self.warm_up_order, self.angle_on = refresh, warm_up_order, angle_on
        self.most_warm_up_rounds = warm_up_rounds
        if angle_on == "head":
            self.saved = (*self.saved, "head_updates")
        elif signal == "labels":
            why = "with sampler.signal=labels and sampler.angle_on=signal"
            self.unread = {"sampler.refresh": why}
        by_server = signal in ("auto", "bias", "weight_rowmean")
        of_signal: dict[str, str] = {}
        if by_server:  # virtual_bias reads the head's logits, before a loss excludes classes
            of_zero = {LEAVES_OUT_CLASSES: f"{_ZERO}, or with a loss sampler.signal=virtual_bias"}
            of_mixed = {MIXES_LATE: f"{_MIXED} or sampler.signal=class_counts"}
            of_signal = COMPARES_STEPS | of_zero | of_mixed
            if scale == "fixed":
                of_signal |= {SHORTENS_STEPS: _SHORTENED}
        elif signal == "virtual_bias":
            of_signal = {HEAD_LEAVES_OUT_CLASSES: _ZERO}
        if signal == "auto":  # other heads make clients send class counts
            of_signal = {trait: f"{_WITH_BIAS}: {why}" for trait, why in of_signal.items()}
        of_angle = COMPARES_STEPS | {MIXES_LATE: _MIXED} if angle_on == "head" else {}
        self.discourages = of_signal | of_angle

    def setup(self, setting: Setting) -> None:
        """Find the weights from which the clients' signals are computed; set all signals to zero.

        Raises:
            InputError: the head has no weights for this signal, or there are too few landmarks.
        """
        super().setup(setting)
        self.rounds = setting.rounds
        clients = setting.clients
        self.classes_of = clients.classes_of
        self.true_entropies = torch.full((setting.num_clients,), torch.nan, dtype=torch.float64)
        if clients.class_counts is not None:
            self.true_entropies = label_entropy(clients.class_counts)
        self.source = find_signal(self.signal, setting)
        if self.signal == "auto" and self.source.counts_labels:
            LOGGER.info(
                "sampler.signal=auto: this head does not have exactly one trained and shared bias, "
                "so clients send their class counts; sampler.temperature and sampler.scale have no "
                "effect"
            )
        of_unit_vectors = self.scale == "client" and not self.source.counts_labels
        if of_unit_vectors and self.temperature < _SMALL_FOR_UNIT_VECTORS:
            LOGGER.warning(
                "sampler.scale=client: with sampler.temperature=%g the estimated entropies of most "
                "clients are about 0, so hardly any is preferred; use sampler.temperature=0.2, as "
                "sampler=hics_scale_free has",
                self.temperature,
            )
        self.head_names = head_weights(setting) if self.angle_on == "head" else []
        all_rounds = math.ceil(len(self.with_data) / self.most_chosen)
        self.warm_up_rounds = min(self.most_warm_up_rounds or all_rounds, all_rounds)
        self.order = self.with_data  # in which the warm-up chooses the clients
        if self.warm_up_order == "random":
            self.order = numpy_generator(self.seed, "warm_up").permutation(self.with_data)
        self.cluster = ClientClusters(
            self.clusters or self.cohort_size,
            self.lam,
            self.linkage_on,
            self.exact_up_to,
            self.landmarks,
        )
        self.cluster.check(len(self.eligible))
        head_size = sum(setting.model.parameters[name].numel() for name in self.head_names)
        self.signals = torch.zeros(setting.num_clients, setting.num_classes)
        if self.signal == "labels":
            self.signals = clients.all_class_counts("sampler.signal=labels").float()
        self.head_updates = torch.zeros(setting.num_clients, head_size)
        # Numbers of the clients in the figures. The clusters of other clients are not stored.
        self.shown = evenly_spaced(torch.arange(setting.num_clients), MOST_SHOWN)
        self.memberships: dict[int, Tensor] = {}
        self._clusters_found: int | None = None

    # The server's half.

    def select(self, round: int) -> list[int]:
        """In the warm-up choose the next clients in order; later draw clients by clusters.

        The random draws depend on the seed and the round.
        """
        self._clusters_found = None
        if round <= self.warm_up_rounds:
            return self._warm_up(round)
        if self.cohort_size == len(self.eligible) < len(self.with_data):
            return sorted(self.eligible.tolist())
        entropies, clusters = self._clustered(self.generator("landmarks", round))
        self._record_clusters(round, clusters)
        cohort = draw_cohort(
            entropies,
            clusters,
            torch.from_numpy(self.sizes),
            self.gamma(round),
            self.cohort_size,
            self.generator("sampler", round),
        )
        return sorted(self.eligible[cohort].tolist())

    def gamma(self, round: int) -> float:
        """The preference for high entropy in round t of T: gamma_0 (1 - t/T), at least 0."""
        return self.gamma_0 * max(0.0, 1 - round / self.rounds)

    def extract(self, weights: Tensors, current: Tensors) -> Tensors:
        """Compute the client's signal [C] from its sent weights, if they contain the signal.

        With ``angle_on=head``, the result also has the update of the head's weights as one vector.
        """
        found = self.source.extract(weights, current)
        if self.head_names:
            found["head_update"] = flat_update(weights, current, self.head_names)
        return found

    def aggregate(self, updates: Sequence[PartUpdate]) -> None:
        """Store the cohort's signals and, with ``angle_on=head``, the updates of its heads."""
        super().aggregate(updates)
        for update in updates:
            self._store(update.client, update.extras)

    def metrics(self) -> dict[str, float]:
        """The number of clusters, and a measure of how good the estimated entropies are.

        ``sampler/clusters`` is absent in rounds without clustering. ``sampler/entropy_spearman`` is
        the rank correlation between the estimated and the true label entropies of the clients
        chosen so far; it is absent if it is undefined. A real server would not know the true
        entropies.
        """
        found = {}
        if self._clusters_found is not None:
            found["sampler/clusters"] = float(self._clusters_found)
        rho = spearman(*self._entropies(self.times_chosen > 0))
        return found if rho is None else found | {"sampler/entropy_spearman": rho}

    def figures(self, memories: Mapping[int, Memory], about: Description) -> dict[str, Figure]:
        """Add figures of the estimated and true entropies, and of the clusters in each round."""
        from fedexp.samplers.entropy_figures import (
            entropy_bars,
            entropy_scatter,
            membership_heatmap,
        )

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
        """Compute the tensors for the client's signal from one batch; see ``samplers.signals``."""
        return self.source.measure(batch)

    def report(self, client: Client, memory: Memory) -> Tensors:
        """Send the signal [C] from which the server estimates the label entropy.

        Nothing is sent if the server knows the signal or computes the signal from the sent weights.
        """
        return self.source.report(client, client.measured(self))

    def _warm_up(self, round: int) -> list[int]:
        """The next available clients in the order of the warm-up without an accepted update yet.

        If there are too few, other clients fill the cohort.
        """
        start = (round - 1) * self.most_chosen
        following = np.roll(self.order, -start)
        present = following[np.isin(following, self.eligible)]
        again = self.times_chosen.numpy()[present] > 0
        most = min(self.cohort_size, len(self.order) - start)
        return sorted(np.concatenate([present[~again], present[again]])[:most].tolist())

    def _clustered(self, generator: np.random.Generator) -> tuple[Tensor, Tensor]:
        """The estimated label entropy [n] and cluster [n] of each client that can be chosen."""
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
        """Label entropies and updates of ``clients`` [n]; None means all that can be chosen."""
        clients = self.eligible if clients is None else clients
        signals = self.signals[clients]
        updates = self.head_updates[clients] if self.head_names else signals
        return Profiles(self._estimates(signals), updates)

    def _estimates(self, signals: Tensor) -> Tensor:
        """Estimate label entropies [n] from signals [n, C]; from class counts they are exact."""
        if self.source.counts_labels:
            unknown = signals.sum(dim=1, keepdim=True) == 0
            return label_entropy(signals + unknown)
        return estimated_entropy(signals, self.temperature, self.scale)

    def _store(self, client: int, extracted: Tensors) -> None:
        """Store a client's signal and head update if both are finite and ``refresh`` allows it."""
        stored = self.head_updates if self.head_names else self.signals
        if self.refresh == "warm_up" and stored[client].any():
            return
        on_cpu = {name: value.cpu() for name, value in extracted.items()}
        if not all(value.isfinite().all() for value in on_cpu.values()):
            return
        if "signal" in on_cpu:
            self.signals[client] = on_cpu["signal"]
        if self.head_names:
            self.head_updates[client] = on_cpu["head_update"]

    def _record_clusters(self, round: int, clusters: Tensor) -> None:
        """Store this round's clusters for the figure; -1 marks a client that cannot be chosen."""
        everyone = torch.full((len(self.signals),), -1, dtype=torch.int32)
        everyone[self.eligible] = clusters.to(torch.int32)
        self.memberships[round] = everyone[self.shown]
        self._clusters_found = int(clusters.max()) + 1

    def _entropies(self, clients: Tensor) -> tuple[Tensor, Tensor]:
        """The true and estimated label entropies of ``clients``.

        ``clients`` is a mask [N] or numbers [n].
        """
        true = self.true_entropies[clients]
        if true.isnan().any():  # a client whose classes have not been counted yet
            numbers = clients.nonzero().flatten() if clients.dtype == torch.bool else clients
            new = numbers[true.isnan()]
            self.true_entropies[new] = label_entropy(self.classes_of(new))
            true = self.true_entropies[clients]
        return true, self._estimates(self.signals[clients])
