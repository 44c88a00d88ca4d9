"""The base of samplers that compare clients by their last updates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedexp.core.messages import PartUpdate, Tensors
from fedexp.core.part import Setting
from fedexp.errors import InputError
from fedexp.samplers.base import Sampler

_MOST_CLIENTS = 20_000
"""Largest number of clients; the distances of all pairs take 3 GiB."""

_BLOCK = 16
"""How many clients are compared at a time. It limits the memory that this needs."""


class LastUpdates(Sampler):
    """Stores each client's last update w_k - w^t, and the distances between these updates.

    An update is one float32 vector [D] of the shared parameters, without buffers, on the CPU. So
    the server and each checkpoint hold N D numbers when all clients have trained. The update of a
    client that has not trained yet is zero. An update that is not finite is ignored. A round
    recomputes only the distances of its cohort to all clients, in about K N D operations.

    Attributes:
        updates: client -> its last update [D], for clients that have trained.
        distances: [n, n] float64, the distances between the n clients with data, in the order of
            their numbers; zero on the diagonal.
    """

    takes_tokens = True
    updates: dict[int, Tensor]
    distances: Tensor

    def distance(self, rows: Tensor, columns: Tensor) -> Tensor:
        """Distance [n, m] float64 of each of ``rows`` [n, D] from each of ``columns`` [m, D]."""
        raise NotImplementedError

    def setup(self, setting: Setting) -> None:
        """Set all updates to zero.

        Raises:
            InputError: too many clients have data, or no parameter is shared.
        """
        super().setup(setting)
        if (clients := len(self.with_data)) > _MOST_CLIENTS:
            raise InputError(
                f"sampler: compares all pairs of clients with data, at most {_MOST_CLIENTS:,} "
                f"clients, but {clients:,} have data; use sampler=random or sampler=hics"
            )
        shapes = setting.parameter_shapes
        self.names = [name for name in shapes if name in setting.shared]
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
        """The client's update as one vector [D]."""
        return {"update": self.flatten({n: weights[n] - current[n] for n in self.names})}

    def aggregate(self, updates: Sequence[PartUpdate]) -> None:
        """Replace the updates of the cohort."""
        super().aggregate(updates)
        self.replace({each.client: each.extras["update"] for each in updates if each.extras})

    @property
    def distances_now(self) -> Tensor:
        """[n, n] the distances between the clients that can be chosen in this round."""
        places = torch.from_numpy(np.flatnonzero(self.available))
        return self.distances[places][:, places]

    def flatten(self, tensors: Tensors) -> Tensor:
        """Join the tensors of the shared parameters into one vector [D], float32."""
        return torch.cat([tensors[name].flatten().float() for name in self.names])

    def replace(self, vectors: Mapping[int, Tensor]) -> None:
        """Replace the updates of some clients and recompute the distances of these clients.

        Args:
            vectors: client -> its new update [D].
        """
        if not vectors:
            return
        self.updates |= {c: v.cpu() for c, v in sorted(vectors.items()) if v.isfinite().all()}
        new = [place for place, client in enumerate(self.with_data) if client in vectors]
        everyone = torch.split(torch.arange(len(self.with_data)), _BLOCK)
        for places in torch.split(torch.tensor(new, dtype=torch.int64), _BLOCK):
            rows = self._vectors(places)
            fresh = torch.cat([self.distance(rows, self._vectors(block)) for block in everyone], 1)
            self.distances[places] = fresh
            self.distances[:, places] = fresh.T
        self.distances.fill_diagonal_(0)

    def server_state(self) -> dict[str, Any]:
        """The state of ``Sampler``, and the updates and the distances."""
        state = {"updates": dict(self.updates), "distances": self.distances.clone()}
        return super().server_state() | state

    def load_server_state(self, state: dict[str, Any]) -> None:
        """Inverse of ``server_state``."""
        super().load_server_state(state)
        self.updates, self.distances = dict(state["updates"]), state["distances"].clone()

    def _vectors(self, places: Tensor) -> Tensor:
        """Last updates [n, D]; ``places`` [n] are positions in the list of clients with data."""
        zero = torch.zeros(self.width)
        clients = self.with_data[places.numpy()].tolist()
        return torch.stack([self.updates.get(client, zero) for client in clients])
