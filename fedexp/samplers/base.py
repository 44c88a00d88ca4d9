"""The base class of samplers."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from fedexp.config.compatibility.traits import OTHER_STARTS, SENDS_OTHER
from fedexp.contract import Client, Memory, Part, PartUpdate, Setting, Tensors
from fedexp.core.description import Description
from fedexp.core.randomness import numpy_generator
from fedexp.drawing.shown_clients import ALL_CLIENTS, evenly_spaced
from fedexp.samplers.heterogeneity import label_entropy

if TYPE_CHECKING:
    from matplotlib.figure import Figure


MOST_SHOWN = 500
"""Largest number of clients in a figure of a large population."""

COMPARES_STEPS = dict.fromkeys(
    OTHER_STARTS,
    "this sampler compares clients by how far their weights are from the global weights, but this "
    "method may start clients from other weights, so the distance is not only the client's own "
    "step; use sampler=random or sampler=weighted",
) | {
    SENDS_OTHER: "this sampler compares clients by how far the weights that they send are from the "
    "global weights, but with this {other} these are not the trained ones, so the distance is not "
    "the client's own step; use sampler=random or sampler=weighted",
}
"""``discourages`` of samplers that compare w_k - w^t as the step of client k from w^t."""


class Sampler(Part):
    """Chooses the cohort of a round. It may learn from the updates in ``aggregate``.

    A sampler chooses among the clients that have data and are available when the round starts. If
    there are fewer than K such clients, it chooses all of them. Before the choice a sampler may
    probe clients: a probed client receives the global model, computes an answer and sends the
    answer. The bytes of these messages and answers are counted as traffic.

    Attributes:
        times_chosen: [N] int64, the number of accepted updates of each client, in rounds whose
            updates the server merged. The update of a client that was drawn twice counts twice.
        with_data: [m] int64, numbers of the m clients with data, in increasing order.
        available: [m] bool, which clients in ``with_data`` can be chosen in this round.
        most_chosen: min(K, m), the largest possible size of a cohort.
        eligible: [n] int64, numbers of the n clients that can be chosen in this round, in
            increasing order.
        sizes: [n] int64, the number of training samples of each client in ``eligible``.
        cohort_size: the number of clients to choose in this round, at most n.
        trains_candidates: whether a probed client trains like a client of the cohort before it
            answers. This training affects only the answer; the trained weights are discarded. It
            is declared, because only the engine can train.
    """

    takes_only_merged = True  # times_chosen counts turns; it knows nothing of the clients' data
    saved: tuple[str, ...] = ("times_chosen",)
    trains_candidates: bool = False

    def setup(self, setting: Setting) -> None:
        """Set the sampler's attributes; at first all clients with data are available."""
        self.times_chosen = torch.zeros(setting.num_clients, dtype=torch.int64)
        self._clients = setting.clients  # only for figures
        sizes = setting.clients.sizes.numpy()
        self.seed = setting.seed
        self.with_data: np.ndarray = np.flatnonzero(sizes)
        self._sizes_with_data: np.ndarray = sizes[self.with_data]
        self.most_chosen = min(setting.clients_per_round, len(self.with_data))
        self.limit_to(None)

    def limit_to(
        self, available: np.ndarray | None, places: int | None = None, selection: int = 0
    ) -> None:
        """Server: restrict the next selection to some of the clients with data.

        The server calls this before every selection. It sets ``available``, ``eligible``, ``sizes``
        and ``cohort_size``.

        Args:
            available: [m] bool, which clients with data can be chosen. None means all of them.
            places: the largest number of clients to choose. None means K.
            selection: 0 for the first selection in a round, 1 for the second, and so on.
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
        """A random generator for this purpose and round.

        If a round selects clients several times, each selection has its own generator; see
        ``limit_to``.
        """
        later = [self._selection] if self._selection else []
        return numpy_generator(self.seed, purpose, round, *later)

    def candidates(self, round: int) -> Sequence[int]:
        """Server: the clients to probe before choosing. By default there are none."""
        return ()

    def answer(self, client: Client) -> Tensors:
        """Client: compute the answer to a probe.

        The client's weights are the global model, or its trained model if ``trains_candidates`` is
        true.
        """
        raise NotImplementedError

    def observe(self, answers: Mapping[int, Tensors]) -> None:
        """Server: receive the answers of the probed clients, before each call of ``select``.

        Args:
            answers: number of a probed client -> answer of this client.
        """

    def observe_seconds(self, seconds: Mapping[int, float]) -> None:
        """Server: receive the simulated duration of each turn of the round.

        If time is simulated, this is called after a round's training and before ``aggregate``. The
        clients in ``seconds`` that have no update in ``aggregate`` were left out: they missed the
        deadline, enough other clients were faster, or their update was refused. A client that
        dropped out during its turn is not in ``seconds``. If no update was accepted, or the server
        does not merge the updates, ``aggregate`` is not called. This is a hook, because a client
        without an accepted update has seconds, too.

        Args:
            seconds: number of the client -> simulated seconds of the client's turn. If the client
                was late or surplus, these are the seconds that the turn would have taken; see
                ``RoundTime.of_clients``. With ``system.late=partial`` it is the turn with fewer
                steps.
        """

    @abstractmethod
    def select(self, round: int) -> list[int]:
        """Server: choose this round's clients. A client that is drawn twice is listed twice."""
        raise NotImplementedError

    def aggregate(self, updates: Sequence[PartUpdate]) -> None:
        """Server: add the draws of these updates' clients to ``times_chosen``."""
        for update in updates:
            self.times_chosen[update.client] += update.draws

    def figures(self, memories: Mapping[int, Memory], about: Description) -> dict[str, Figure]:
        """Draw a bar chart of ``times_chosen``.

        The data that are saved with the figure also contain the entropy of each client's labels. In
        a large population the figure shows only clients with accepted updates.
        """
        from fedexp.samplers.times_chosen_figure import times_chosen_bars  # imports Matplotlib

        shown = self._shown_of_many()
        clients = torch.arange(len(self.times_chosen)) if shown is None else shown
        entropies = label_entropy(self._clients.classes_of(clients))
        bars = times_chosen_bars(self.times_chosen, entropies, shown)
        return {"sampler/times_chosen": bars}

    def _shown_of_many(self) -> Tensor | None:
        """The clients to show in the figure, at most ``MOST_SHOWN``; None means all."""
        counted = self._clients.class_counts is not None
        if counted and len(self.times_chosen) <= ALL_CLIENTS:
            return None
        return evenly_spaced(self.times_chosen.nonzero().flatten(), MOST_SHOWN)
