"""What every sampler is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from fedexp.core.client_protocol import Client
from fedexp.core.description import Description
from fedexp.core.messages import Tensors, Update
from fedexp.core.part import Memory, Part, Setting
from fedexp.samplers.figures import times_chosen_bars

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class Sampler(Part):
    """Chooses the cohort of a round; what it learns from the updates it takes in ``aggregate``.

    Clients without data are never chosen; if fewer than K have data, all of those take part, or as
    many draws are made. A
    sampler may question clients about the global model before it chooses; what is sent for that is
    counted as traffic.

    Attributes:
        times_chosen: [N] int64, how often each client was drawn; a draw counts when the update
            comes in.
    """

    def setup(self, setting: Setting) -> None:
        """Learn who has data."""
        self.times_chosen = torch.zeros(setting.num_clients, dtype=torch.int64)
        sizes = setting.client_sizes.numpy()
        self.seed = setting.seed
        self.eligible: np.ndarray = np.flatnonzero(sizes)
        self.sizes: np.ndarray = sizes[self.eligible]
        self.cohort_size = min(setting.clients_per_round, len(self.eligible))

    def candidates(self, round: int) -> Sequence[int]:
        """Server: the clients to question before choosing; nobody by default."""
        return ()

    def answer(self, client: Client) -> Tensors:
        """Client: the answer; the module is the global model and ``client.data`` the data."""
        raise NotImplementedError

    def observe(self, answers: Mapping[int, Tensors]) -> None:
        """Server: client -> answer, of all candidates; called before every ``select``."""

    def select(self, round: int) -> list[int]:
        """The cohort of this round: client numbers, more than once for one that counts double."""
        raise NotImplementedError

    def aggregate(self, updates: Sequence[Update]) -> None:
        """Count who was chosen."""
        for update in updates:
            self.times_chosen[update.client] += update.draws

    def server_state(self) -> dict[str, Any]:
        """Who was chosen how often."""
        return {"times_chosen": self.times_chosen.clone()}

    def load_server_state(self, state: dict[str, Any]) -> None:
        """Inverse of ``server_state``."""
        self.times_chosen = state["times_chosen"].clone()

    def figures(self, memories: Mapping[int, Memory], about: Description) -> dict[str, Figure]:
        """How often each client was chosen."""
        return {"sampler/times_chosen": times_chosen_bars(self.times_chosen)}
