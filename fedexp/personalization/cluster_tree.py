"""The tree of clusters that arises when clusters are divided in two."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fedexp.core.cosines import cosines
from fedexp.core.messages import Tensors


@dataclass
class Node:
    """A cluster of clients, which is a node of the tree.

    Attributes:
        model: the model that the cluster's clients start from. In a divided cluster it is the model
            from before the division. If empty, the clients start from the global model.
        first_child: the number of the first child; the second child has the next number. It is 0 if
            the cluster is not divided.
        steps: [n, D] updates of the clients that were present at the division.
        groups: [n] the child, 0 or 1, that each of these clients went to.
    """

    model: Tensors
    first_child: int
    steps: Tensor
    groups: Tensor


class ClusterTree:
    """The tree of all clusters. Clusters are numbered, and cluster 0 starts with all clients.

    Args:
        clients: N, the number of clients.

    Attributes:
        nodes: the clusters in the order of their numbers.
        place: [N] int64, the number of each client's cluster.
    """

    def __init__(self, clients: int) -> None:
        self.nodes: list[Node] = []
        self.place = torch.zeros(clients, dtype=torch.int64)
        self._add({})

    @property
    def leaves(self) -> int:
        """The number of clusters that are not divided."""
        return sum(not node.first_child for node in self.nodes)

    def node_of(self, client: int) -> Node:
        """The client's cluster."""
        return self.nodes[int(self.place[client])]

    def divide(
        self, number: int, start: Tensors, clients: Tensor, steps: Tensor, groups: Tensor
    ) -> None:
        """Divide a cluster and move the present clients to its two children.

        Args:
            number: the number of the cluster.
            start: the model from which the clients' training started.
            clients: [n] the clients that are present.
            steps: [n, D] the updates of these clients.
            groups: [n] 0 or 1, the child of each client.
        """
        node = self.nodes[number]
        node.model, node.steps, node.groups = start, steps, groups
        node.first_child = len(self.nodes)
        self._add(start)
        self._add(start)
        self.place[clients] = node.first_child + groups.cpu()

    def descend(self, client: int, step: Tensor) -> None:
        """Move a client that was absent at its cluster's division to one of the children.

        ``step`` [D] is the client's update. The method compares it with the updates that were
        stored at the division. The client joins the child of the stored update with the largest
        cosine to ``step``.
        """
        node = self.node_of(client)
        nearest = cosines(step[None], node.steps.to(step.device)).argmax()
        self.place[client] = node.first_child + node.groups[nearest.cpu()]

    def state(self) -> dict[str, Any]:
        """The tree, for a checkpoint."""
        return {"place": self.place.clone(), "nodes": [dict(vars(node)) for node in self.nodes]}

    def load_state(self, state: dict[str, Any]) -> None:
        """Inverse of ``state``."""
        self.place, self.nodes = state["place"], [Node(**each) for each in state["nodes"]]

    def _add(self, model: Tensors) -> None:
        nothing = torch.zeros(0)
        self.nodes.append(Node(model, 0, nothing, nothing))
