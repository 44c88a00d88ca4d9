"""HiCS-FL's clusters of clients: exact, or by landmarks in a large population."""

import logging
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fedexp.errors import InputError
from fedexp.samplers.clusters import LinkageOn, nearest_clusters, ward
from fedexp.samplers.heterogeneity import (
    Profiles,
    cluster_means,
    distances_between,
    distances_within,
)

LOGGER = logging.getLogger(__name__)

_BLOCK = 4096
"""Clients assigned to clusters at a time: bounds the memory of a large population."""


@dataclass(frozen=True)
class ClientClusters:
    """Clusters by Ward's method on the distances of HiCS-FL Eq. 9.

    Beyond ``exact_up_to`` clients a random sample of them, the landmarks, is clustered. Every other
    client joins the cluster with the smallest mean distance to its landmarks.

    Attributes:
        clusters: M, the most clusters.
        lam: weight of the angle in the distance.
        linkage_on: as in ``ward``.
        exact_up_to: the largest population that is clustered as a whole.
        landmarks: size of the sample in a larger one.
    """

    clusters: int
    lam: float
    linkage_on: LinkageOn
    exact_up_to: int
    landmarks: int

    def check(self, clients: int) -> None:
        """Warn if so many clients need landmarks; raise InputError if there are too few of them."""
        if clients <= self.exact_up_to:
            return
        if self.landmarks < self.clusters:
            raise InputError(
                f"sampler.landmarks={self.landmarks}: must be at least the number of clusters, "
                f"{self.clusters}, when more than sampler.exact_up_to={self.exact_up_to} "
                f"clients have data"
            )
        LOGGER.warning(
            "sampler=hics: %d clients with data are more than sampler.exact_up_to=%d; each round "
            "clusters %d of them, and the others join the nearest cluster",
            clients,
            self.exact_up_to,
            min(self.landmarks, clients),
        )

    def __call__(self, profiles: Profiles, generator: np.random.Generator) -> Tensor:
        """[n] int64 cluster of each client, numbered by mean entropy, lowest first.

        Args:
            profiles: of the n clients.
            generator: draws the landmarks.
        """
        if len(profiles) <= self.exact_up_to:
            clusters = self._ward(profiles)
        else:
            clusters = self._by_landmarks(profiles, generator)
        ranks = cluster_means(profiles.entropies, clusters).argsort(stable=True).argsort()
        return ranks[clusters]

    def _ward(self, profiles: Profiles) -> Tensor:
        return ward(distances_within(profiles, self.lam), self.clusters, self.linkage_on)

    def _by_landmarks(self, profiles: Profiles, generator: np.random.Generator) -> Tensor:
        clients = len(profiles)
        drawn = generator.choice(clients, min(self.landmarks, clients), replace=False)
        chosen = torch.from_numpy(drawn)
        landmarks = profiles[chosen]
        labels = self._ward(landmarks)
        blocks = (
            distances_between(profiles[start : start + _BLOCK], landmarks, self.lam)
            for start in range(0, clients, _BLOCK)
        )
        clusters = torch.cat([nearest_clusters(block, labels) for block in blocks])
        clusters[chosen] = labels
        return clusters
