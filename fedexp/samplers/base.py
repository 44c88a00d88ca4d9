"""The contract of a sampler."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from fedexp.core.client_protocol import Client
from fedexp.core.description import Description
from fedexp.core.messages import PartUpdate, Tensors
from fedexp.core.part import Memory, Part, Setting
from fedexp.core.randomness import numpy_generator
from fedexp.drawing.shown_clients import ALL_CLIENTS, evenly_spaced
from fedexp.samplers.heterogeneity import label_entropy
from fedexp.samplers.times_chosen_figure import times_chosen_bars

if TYPE_CHECKING:
    from matplotlib.figure import Figure


MOST_SHOWN = 500
"""Limit on the clients in a picture of a large population."""


class Sampler(Part):
    """Chooses the cohort of a round. It may learn from the updates in ``aggregate``.

    It chooses among the clients that have data and are available when the round starts. If these
    are fewer than K, it chooses all of them. A sampler may probe clients before it chooses: a
    probed client receives the global model, computes an answer and sends it. Messages and answers
    of probes count as traffic.

    Attributes:
        times_chosen: [N] int64, number of draws of each client; a draw counts when its update
            arrives.
        with_data: [m] int64, the clients with data, in order.
        available: [m] bool, which of them can be chosen in this round.
        most_chosen: min(K, m).
        eligible: [n] int64, the clients that can be chosen in this round, in order.
        sizes: [n] int64, the number of training samples of each eligible client.
        cohort_size: min(K, n).
        trains_candidates: whether a probed client trains like a client of the cohort before it
            answers. Only the answer uses this training; the rest of its results is discarded.
    """

    trains_candidates: bool = False

    def setup(self, setting: Setting) -> None:
        """Find the clients with data."""
        self.times_chosen = torch.zeros(setting.num_clients, dtype=torch.int64)
        self._setting = setting  # only for figures
        sizes = setting.client_sizes.numpy()
        self.seed = setting.seed
        self.with_data: np.ndarray = np.flatnonzero(sizes)
        self._sizes_with_data: np.ndarray = sizes[self.with_data]
        self.most_chosen = min(setting.clients_per_round, len(self.with_data))
        self.limit_to(None)

    def limit_to(
        self, available: np.ndarray | None, places: int | None = None, selection: int = 0
    ) -> None:
        """Server: allow only some of the clients with data. It is called before every selection.

        It sets ``available``, ``eligible``, ``sizes`` and ``cohort_size``.

        Args:
            available: [m] bool; None allows all clients with data.
            places: the largest number of clients to choose; None for K.
            selection: number of the selection in its round, from 0.
        """
        if available is None:
            available = np.ones(len(self.with_data), dtype=bool)
        self.available = available
        self.eligible: np.ndarray = self.with_data[available]
        self.sizes: np.ndarray = self._sizes_with_data[available]
        most = self.most_chosen if places is None else min(places, self.most_chosen)
        self.cohort_size = min(most, len(self.eligible))
        self._selection = selection

    def generator(self, purpose: str, round: int) -> np.random.Generator:
        """The random generator for one purpose in the current selection."""
        later = [self._selection] if self._selection else []
        return numpy_generator(self.seed, purpose, round, *later)

    def candidates(self, round: int) -> Sequence[int]:
        """Server: the clients to probe before choosing. By default there are none."""
        return ()

    def answer(self, client: Client) -> Tensors:
        """Client: the answer to a probe.

        ``client`` has the global model, or the trained model if ``trains_candidates`` is true.
        """
        raise NotImplementedError

    def observe(self, answers: Mapping[int, Tensors]) -> None:
        """Server: receive the answers of the probed clients. It is called before every ``select``.

        Args:
            answers: client -> its answer.
        """

    def observe_seconds(self, seconds: Mapping[int, float]) -> None:
        """Server: receive client -> simulated seconds of its turn, for each update that arrived.

        It is called after a round's training and before ``aggregate``, if time is simulated.
        """

    def select(self, round: int) -> list[int]:
        """Server: the clients of this round; a client that is drawn twice is listed twice."""
        raise NotImplementedError

    def aggregate(self, updates: Sequence[PartUpdate]) -> None:
        """Count the draws."""
        for update in updates:
            self.times_chosen[update.client] += update.draws

    def server_state(self) -> dict[str, Any]:
        """How often each client was chosen."""
        return {"times_chosen": self.times_chosen.clone()}

    def load_server_state(self, state: dict[str, Any]) -> None:
        """Inverse of ``server_state``."""
        self.times_chosen = state["times_chosen"].clone()

    def figures(self, memories: Mapping[int, Memory], about: Description) -> dict[str, Figure]:
        """A figure of how often each client was chosen.

        The data that are saved with the figure also have the label entropies. In a large population
        the figure shows only clients that were chosen.
        """
        shown = self._shown_of_many()
        clients = torch.arange(len(self.times_chosen)) if shown is None else shown
        entropies = label_entropy(self._setting.classes_of(clients))
        bars = times_chosen_bars(self.times_chosen, entropies, shown)
        return {"sampler/times_chosen": bars}

    def _shown_of_many(self) -> Tensor | None:
        """The clients in the figure: some of those that were chosen, or None for all clients."""
        counted = self._setting.class_counts is not None
        if counted and len(self.times_chosen) <= ALL_CLIENTS:
            return None
        return evenly_spaced(self.times_chosen.nonzero().flatten(), MOST_SHOWN)
