"""What every sampler is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from fedexp.messages import Tensors
from fedexp.parts import Part, Setting

if TYPE_CHECKING:
    from fedexp.client import ClientModule


class Sampler(Part):
    """Chooses the cohort of a round; what it learns from the updates it takes in ``aggregate``.

    Clients without data are never chosen; if fewer than K have data, all of those take part. A
    sampler may question clients about the global model before it chooses; what is sent for that is
    counted as traffic.
    """

    def setup(self, setting: Setting) -> None:
        """Learn who has data."""
        sizes = setting.client_sizes.numpy()
        self.seed = setting.seed
        self.eligible: np.ndarray = np.flatnonzero(sizes)
        self.sizes: np.ndarray = sizes[self.eligible]
        self.cohort_size = min(setting.clients_per_round, len(self.eligible))

    def candidates(self, round: int) -> Sequence[int]:
        """Server: the clients to question before choosing; nobody by default."""
        return ()

    def answer(self, client: ClientModule) -> Tensors:
        """Client: the answer; the module is the global model and ``client.data`` the data."""
        raise NotImplementedError

    def hear(self, answers: Mapping[int, Tensors]) -> None:
        """Server: client -> answer, of all candidates; called before every ``select``."""

    def select(self, round: int) -> list[int]:
        """The cohort of this round: client numbers, more than once for one that counts double."""
        raise NotImplementedError
