"""The base of samplers that compare clients by their last updates."""

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from fedexp.contract import PartUpdate, Setting, Tensors
from fedexp.errors import InputError
from fedexp.samplers.base import Sampler

_MOST_CLIENTS = 20_000
"""Largest number of clients. The distances of all pairs of them take 3 GiB."""

_BLOCK = 16
"""How many clients are compared at a time; a smaller number needs less memory."""


class LastUpdates(Sampler):
    """Stores the last update of each client, and the distances between these updates.

    An update is w_k - w^t: the weights that client k trained, minus the global weights that it
    received. It is stored on the CPU as one float32 vector of the D shared parameters, without
    buffers. So the server and each checkpoint hold N D numbers when all clients have trained. The
    update of a client that has not trained yet is zero. An update that is not finite is ignored. A
    round recomputes only the distances between its cohort and all clients, in about K N D
    operations.

    Attributes:
        updates: number of the client -> last update [D], for clients that have trained.
        distances: [n, n] float64 distances between the n clients with data, which are in the order
            of their numbers. The diagonal is zero.
    """

    takes_tokens = True
    saved = ("times_chosen", "updates", "distances")
    updates: dict[int, Tensor]
    distances: Tensor

    def distance(self, rows: Tensor, columns: Tensor) -> Tensor:
        """Distances [n, m] of ``rows`` [n, D] from ``columns`` [m, D], float64."""
        raise NotImplementedError

    def setup(self, setting: Setting) -> None:
        """Set the stored last update of each client to zero.

        Raises:
            InputError: too many clients have data, or no parameter is shared.
        """
        super().setup(setting)
        if (clients := len(self.with_data)) > _MOST_CLIENTS:
            raise InputError(
                f"sampler: compares all pairs of clients with data, at most {_MOST_CLIENTS:,} "
                f"clients, but {clients:,} have data; use sampler=random or sampler=hics"
            )
        shapes = setting.model.parameters
        self.names = list(setting.model.shared_parameters)
        if not self.names:
            raise InputError(
                "sampler: compares clients by their updates of shared parameters, but no parameter "
                "is shared; use sampler=random"
            )
        self.width = sum(shapes[name].numel() for name in self.names)
        self.updates = {}
        zeros = torch.zeros(len(self.with_data), 1)
        self.distances = self.distance(zeros, zeros).fill_diagonal_(0)

    def extract(self, weights: Tensors, current: Tensors) -> Tensors:
        """Server: the client's update of the shared parameters as one vector [D]."""
        return {"update": self.flatten({n: weights[n] - current[n] for n in self.names})}

    def aggregate(self, updates: Sequence[PartUpdate]) -> None:
        """Replace the stored updates of the cohort by the arrived ones."""
        super().aggregate(updates)
        self.replace({each.client: each.extras["update"] for each in updates if each.extras})

    @property
    def distances_now(self) -> Tensor:
        """The distances [n, n] between the n clients that can be chosen in this round."""
        places = torch.from_numpy(np.flatnonzero(self.available))
        return self.distances[places][:, places]

    def flatten(self, tensors: Tensors) -> Tensor:
        """Join the tensors of the shared parameters into one vector [D], float32."""
        return torch.cat([tensors[name].flatten().float() for name in self.names])

    def replace(self, vectors: Mapping[int, Tensor]) -> None:
        """Replace the stored updates of some clients, and recompute their distances to all clients.

        Args:
            vectors: number of the client -> new update [D].
        """
        if not vectors:
            return
        on_cpu = {client: vector.cpu() for client, vector in sorted(vectors.items())}
        self.updates |= {c: v for c, v in on_cpu.items() if v.isfinite().all()}
        new = [place for place, client in enumerate(self.with_data) if client in vectors]
        everyone = torch.split(torch.arange(len(self.with_data)), _BLOCK)
        for places in torch.split(torch.tensor(new, dtype=torch.int64), _BLOCK):
            rows = self._vectors(places)
            fresh = torch.cat([self.distance(rows, self._vectors(block)) for block in everyone], 1)
            self.distances[places] = fresh
            self.distances[:, places] = fresh.T
        self.distances.fill_diagonal_(0)

    def _vectors(self, places: Tensor) -> Tensor:
        """The last updates [n, D] of clients; ``places`` [n] are positions in ``with_data``."""
        zero = torch.zeros(self.width)
        clients = self.with_data[places.numpy()].tolist()
        return torch.stack([self.updates.get(client, zero) for client in clients])
