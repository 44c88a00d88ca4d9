"""CFL: a cluster of clients is divided in two if their updates have different directions."""

from collections.abc import Sequence
from dataclasses import replace
from math import sqrt
from typing import Annotated, Any, Literal

import numpy as np
import torch
from pydantic import Field, NonNegativeFloat
from scipy.cluster.hierarchy import cut_tree, linkage
from scipy.spatial.distance import squareform
from torch import Tensor

from fedexp.contract import PartMessage, PartUpdate, Setting, Tensors
from fedexp.core.cosines import cosines
from fedexp.personalization.cluster_models import ClusterModels, Weighting, model_of
from fedexp.personalization.cluster_tree import ClusterTree

Linkage = Literal["single", "complete"]


def bipartition(similarity: Tensor, method: Linkage) -> Tensor:
    """Divide n points in two groups (Sattler et al., TNNLS 2020, Alg. 1).

    alpha_ij is the similarity of points i and j. Single linkage makes the most similar pair of
    points from different groups as dissimilar as possible: the groups c_1 and c_2 minimise the
    maximum of alpha_ij over i in c_1 and j in c_2. Complete linkage avoids groups that consist of
    one outlier.

    Args:
        similarity: alpha [n, n] symmetric, n at least 2.
        method: linkage of the hierarchical clustering, ``single`` or ``complete``.

    Returns:
        The group of each point, [n] int64: 0 or 1. The first point is in group 0.
    """
    distances = 1 - similarity.cpu().numpy()
    np.fill_diagonal(distances, 0)
    tree = linkage(squareform(distances, checks=False), method)
    labels = torch.from_numpy(cut_tree(tree, n_clusters=2).ravel()).to(torch.int64)
    return (labels != labels[0]).to(torch.int64)


def largest_across(similarity: Tensor, groups: Tensor) -> float:
    """The largest similarity of a pair of points in different groups."""
    return similarity[groups == 0][:, groups == 1].max().item()


class CFL(ClusterModels):
    """Divides a cluster when its clients' updates disagree (Sattler et al., TNNLS 2020, Alg. 3).

    All clients start in one cluster. Each cluster is trained by FedAvg of its clients. Let d_i be
    the update of client i: the change of the shared parameters in its local training. A cluster is
    divided if $||mean d_i|| < eps1$ and $max ||d_i|| > eps2$. Then the cluster's model hardly
    changes, although some client changes it much in local training. The authors' code divides no
    cluster in its first 20 rounds; here a cluster may be divided in any round. ``bipartition``
    divides the clients into two new clusters by the cosines between their d_i. The new clusters are
    the children of the divided cluster. A child's first model is the mean of its clients' models in
    this round, as in the authors' code.

    The paper assumes that all clients take part. Here only the clients of the cohort decide about a
    division, and the server stores their updates at the division. When a client that was absent at
    the division next takes part, it gets the model from before the division. The server then finds
    the stored update that is most similar to the client's update, and the client joins the child of
    the stored update. (The paper treats new clients in this way.) In the round in which an absent
    client joins a child, its update is not averaged. A client that missed several divisions needs
    one round for each division.

    A client's personal model is the current model of its cluster. A client that has never trained
    has no cluster once the first one is divided.

    Args:
        eps1: a cluster may be divided only if the norm of its mean update is below this number.
        eps2: a cluster may be divided only if the largest norm of its clients' updates exceeds this
            number.
        gamma: gamma_max of the paper. A cluster is divided only if gamma < sqrt((1 - alpha) / 2),
            where alpha is the largest cosine of two updates in different children. 0 removes this
            condition.
        linkage: see ``bipartition``. The paper uses ``single``, and the authors' code uses
            ``complete``.
        min_clients: a cluster with fewer clients in the cohort is not divided.
        weighting: the clients' weights in the average of models and in the mean update; see
            ``ClusterModels``.
    """

    serves_newcomers = False

    def __init__(
        self,
        eps1: NonNegativeFloat,
        eps2: NonNegativeFloat,
        gamma: Annotated[float, Field(ge=0, le=1)],
        linkage: Linkage,
        min_clients: Annotated[int, Field(ge=2)],
        weighting: Weighting,
    ) -> None:
        super().__init__(weighting)
        self.unread = {"aggregator": "because every cluster has an average of its own"}
        self.eps1, self.eps2, self.gamma = eps1, eps2, gamma
        self.linkage: Linkage = linkage
        self.min_clients = min_clients

    def setup(self, setting: Setting) -> None:
        """Put all clients in one cluster."""
        self._names = tuple(setting.model.shared_parameters)
        self._tree = ClusterTree(setting.num_clients)
        self._updates: Sequence[PartUpdate] = ()
        self._norms: tuple[int, float, float] = (0, 0.0, 0.0)

    def message_to(self, client: int, message: PartMessage) -> PartMessage:
        """The message with the model of the client's cluster."""
        weights = message.weights
        own = {n: w.to(weights[n].device) for n, w in self._tree.node_of(client).model.items()}
        return replace(message, weights=weights | own)

    def aggregate(self, updates: Sequence[PartUpdate]) -> None:
        """Store the updates for ``correct``, which also gets the global weights before training."""
        self._updates = updates

    def correct(self, current: Tensors, merged: Tensors, sums: Tensors, clients: int) -> Tensors:
        """Average the models of each cluster, or divide the cluster.

        Returns:
            The next global weights. They are the model of cluster 0 until cluster 0 is divided.
        """
        first: Tensors = {}
        self._norms = (0, 0.0, 0.0)
        places = [int(self._tree.place[update.client]) for update in self._updates]
        for number in sorted(set(places)):
            present = [u for u, own in zip(self._updates, places, strict=True) if own == number]
            model = self._tree.nodes[number].model
            start = current | {name: w.to(current[name].device) for name, w in model.items()}
            if self._tree.nodes[number].first_child:
                for update in present:
                    self._tree.descend(update.client, self._step(model_of(update), start))
            elif model:
                self._tree.nodes[number].model = self._updated(number, present, start)
            else:
                first = self._updated(number, present, start)
        self._updates = ()
        return merged | first

    def _updated(self, number: int, present: Sequence[PartUpdate], start: Tensors) -> Tensors:
        """Divide a cluster if needed, then average the models of the cluster or of each child.

        Returns:
            The cluster's model; after a division, the model from before the division.
        """
        node, mean = self._tree.nodes[number], self.average(present, start)
        steps = torch.stack([self._step(model_of(update), start) for update in present])
        groups = self._division(steps, self._step(mean, start))
        if groups is None:
            return mean
        clients = torch.tensor([update.client for update in present])
        self._tree.divide(number, start, clients, steps, groups)
        for group in (0, 1):
            own = [u for u, g in zip(present, groups.tolist(), strict=True) if g == group]
            self._tree.nodes[node.first_child + group].model = self.average(own, start)
        return start

    def _division(self, steps: Tensor, mean: Tensor) -> Tensor | None:
        """Decide whether to divide a cluster, and which child each client joins.

        Args:
            steps: [n, D] the clients' updates.
            mean: [D] the cluster's mean update.

        Returns:
            [n] the child, 0 or 1, of each present client. None if the cluster is not divided.
        """
        of_mean, largest = mean.norm().item(), steps.norm(dim=1).max().item()
        self._norms = max(self._norms, (len(steps), of_mean, largest), key=lambda each: each[0])
        if of_mean >= self.eps1 or largest <= self.eps2 or len(steps) < self.min_clients:
            return None
        similarity = cosines(steps, steps)
        groups = bipartition(similarity, self.linkage)
        across = largest_across(similarity, groups)
        return None if self.gamma and self.gamma >= sqrt((1 - across) / 2) else groups

    def _step(self, weights: Tensors, start: Tensors) -> Tensor:
        """The change of all shared parameters from ``start`` to ``weights``, one vector [D]."""
        return torch.cat([(weights[name] - start[name]).flatten() for name in self._names])

    def server_state(self) -> dict[str, Any]:
        """The tree of clusters with their models."""
        return self._tree.state()

    def load_server_state(self, state: dict[str, Any]) -> None:
        """Inverse of ``server_state``."""
        self._tree.load_state(state)

    def metrics(self) -> dict[str, float]:
        """The number of clusters, and two norms for the cluster with the most present clients.

        The two norms are the norm of this cluster's mean update and the largest norm of a client's
        update in this cluster. They are absent if every client of the round only joined a child.
        """
        clients, mean, largest = self._norms
        found: dict[str, float] = {"personalization/clusters": self._tree.leaves}
        if clients:
            found["personalization/mean_step_norm"] = mean
            found["personalization/largest_step_norm"] = largest
        return found
