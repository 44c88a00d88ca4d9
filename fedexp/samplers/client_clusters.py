"""Cluster the clients for HiCS-FL: all of them, or a random sample in a large population."""

import logging
import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fedexp.errors import InputError
from fedexp.rounding import rounded_down
from fedexp.samplers.clusters import LinkageOn, nearest_clusters, ward
from fedexp.samplers.heterogeneity import (
    Profiles,
    by_mean_entropy,
    distances_between,
    distances_within,
)
from fedexp.samplers.ward_groups import ward_beside_equals

LOGGER = logging.getLogger(__name__)

_BLOCK = 4096
"""How many clients are assigned to clusters at a time; a smaller number needs less memory."""


@dataclass(frozen=True)
class ClientClusters:
    """Clusters clients by Ward's method on the distances of HiCS-FL Eq. 9.

    If there are more than ``exact_up_to`` clients, only a random sample of clients is clustered.
    These clients are called landmarks. Every other client joins the cluster whose landmarks have
    the smallest mean distance to the client. A client is called unknown until it has sent an
    update. The profiles of all unknown clients are equal. In a large population one point therefore
    replaces all unknown clients, so that the cost of a round depends only on the known clients. The
    clusters are the same, except that unknown clients never get into different clusters
    (``ward_beside_equals``).

    Attributes:
        clusters: M, the largest number of clusters.
        lam: weight of the angle in the distance; the difference of entropies has weight 1 - lam.
        linkage_on: the input of Ward's method, see ``ward``.
        exact_up_to: the largest number of clients that are clustered without landmarks.
        landmarks: number of landmarks in a larger population.
    """

    clusters: int
    lam: float
    linkage_on: LinkageOn
    exact_up_to: int
    landmarks: int

    def check(self, clients: int) -> None:
        """Warn if only a sample of the clients, the landmarks, is clustered.

        Raises InputError if there are fewer landmarks than clusters.

        Args:
            clients: the number of clients with data.
        """
        if clients <= self.exact_up_to:
            return
        if self.landmarks < self.clusters:
            raise InputError(
                f"sampler.landmarks={self.landmarks}: must be at least the number of clusters, "
                f"{self.clusters}, because more than sampler.exact_up_to={self.exact_up_to} "
                f"clients have data; use {self.clusters} or more"
            )
        LOGGER.warning(
            "sampler=hics: %d clients with data are more than sampler.exact_up_to=%d; each round "
            "clusters %d of them, and the others join the nearest cluster",
            clients,
            self.exact_up_to,
            min(self.landmarks, clients),
        )

    def __call__(self, profiles: Profiles, generator: np.random.Generator) -> Tensor:
        """Find the number of each client's cluster, [n] int64.

        Cluster 0 has the lowest mean entropy, cluster 1 the second lowest, and so on.

        Args:
            profiles: profiles of the n clients.
            generator: draws the landmarks.
        """
        if len(profiles) <= self.exact_up_to:
            clusters = self._ward(profiles)
        else:
            clusters = self._by_landmarks(profiles, generator)
        return by_mean_entropy(profiles.entropies, clusters)

    def beside_unknown(
        self, known: Profiles, unknown: Profiles, number: int, generator: np.random.Generator
    ) -> Tensor:
        """Find the cluster of each known client, and the one cluster of all unknown clients.

        Args:
            known: profiles of n clients; n may be 0.
            unknown: profile of one unknown client. Its update is zero.
            number: number of unknown clients, at least 1.
            generator: draws the landmarks, if more than ``exact_up_to`` clients are known.

        Returns:
            [n + 1] int64 numbers of clusters, not ordered by entropy. The last entry is the cluster
            of the unknown clients.
        """
        chosen = torch.arange(len(known))
        if len(known) > self.exact_up_to:
            landmarks = min(self.landmarks, len(known))
            chosen = torch.from_numpy(np.sort(generator.choice(len(known), landmarks, False)))
        share = len(chosen) / max(1, len(known))  # a landmark represents 1 / share clients
        weight = max(1, rounded_down(share, number))
        sample = known[chosen]
        found = ward_beside_equals(
            distances_within(sample, self.lam).numpy(),
            distances_between(sample, unknown, self.lam)[:, 0].numpy(),
            self.lam * math.pi / 2,  # the angle of two zero vectors
            weight,
            self.clusters,
            self.linkage_on,
        )
        labels = torch.from_numpy(found)
        if len(chosen) == len(known):
            return labels
        weights = torch.ones(len(labels), dtype=torch.float64)
        weights[-1] = weight
        points = Profiles(
            torch.cat((sample.entropies, unknown.entropies)),
            torch.cat((sample.updates, unknown.updates)),
        )
        clusters = self._nearest(known, points, labels, weights)
        clusters[chosen] = labels[:-1]
        return torch.cat((clusters, labels[-1:]))

    def _ward(self, profiles: Profiles) -> Tensor:
        return ward(distances_within(profiles, self.lam), self.clusters, self.linkage_on)

    def _by_landmarks(self, profiles: Profiles, generator: np.random.Generator) -> Tensor:
        clients = len(profiles)
        drawn = generator.choice(clients, min(self.landmarks, clients), replace=False)
        chosen = torch.from_numpy(drawn)
        landmarks = profiles[chosen]
        labels = self._ward(landmarks)
        clusters = self._nearest(profiles, landmarks, labels)
        clusters[chosen] = labels
        return clusters

    def _nearest(
        self, profiles: Profiles, landmarks: Profiles, labels: Tensor, weights: Tensor | None = None
    ) -> Tensor:
        """Find the nearest cluster of each of n clients, [n] int64, block by block."""
        blocks = (
            distances_between(profiles[start : start + _BLOCK], landmarks, self.lam)
            for start in range(0, len(profiles), _BLOCK)
        )
        return torch.cat([nearest_clusters(block, labels, weights) for block in blocks])
