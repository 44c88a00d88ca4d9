"""Placement of clients on ranks: each rank trains its clients and keeps their states."""

import math
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np

from fedexp.core.messages import Tensors, Update
from fedexp.core.reducible import Contribution
from fedexp.distributed.ranks import Ranks
from fedexp.state.client_state import ClientState
from fedexp.state.client_store import ClientStore

_KEPT = 0.5
"""Factor by which the sums of earlier rounds shrink when a round is added."""


class Speeds:
    """The speed of each rank, in samples per second relative to the mean of all ranks.

    Args:
        num_ranks: number of ranks.
        measured: whether to measure; otherwise all ranks count as equally fast.
    """

    def __init__(self, num_ranks: int, measured: bool) -> None:
        self._measured = measured
        self._samples, self._seconds = [0.0] * num_ranks, [0.0] * num_ranks
        self._own = 0, 0.0

    def timed(self, updates: Iterable[Update]) -> Iterator[Update]:
        """Yield the updates of this rank's clients; measure the time until the last update."""
        start, samples = time.perf_counter(), 0
        for update in updates:
            samples += update.samples
            yield update
        self._own = samples, time.perf_counter() - start

    def own_round(self) -> tuple[int, float]:
        """Return this rank's (samples, seconds) of the latest ``timed``, and reset them to 0."""
        found, self._own = self._own, (0, 0.0)
        return found

    def add_round(self, of_ranks: Sequence[tuple[int, float]]) -> None:
        """Add each rank's samples and seconds; a rank without samples keeps its speed."""
        for rank, (samples, seconds) in enumerate(of_ranks):
            if samples:
                self._samples[rank] = _KEPT * self._samples[rank] + samples
                self._seconds[rank] = _KEPT * self._seconds[rank] + seconds

    def relative(self) -> list[float]:
        """Each rank's speed divided by the mean of the measured speeds; 1 if not measured."""
        pairs = list(zip(self._samples, self._seconds, strict=True))
        known = [samples / seconds for samples, seconds in pairs if seconds]
        if not (self._measured and known):
            return [1.0] * len(pairs)
        mean = sum(known) / len(known)
        return [samples / seconds / mean if seconds else 1.0 for samples, seconds in pairs]


Sizes = Sequence[int] | np.ndarray
"""Client -> samples that its turn computes; an array in a large population."""


def place(
    clients: Iterable[int],
    sizes: Sizes,
    homes: Mapping[int, int],
    speeds: Sequence[float],
    largest_load: float = math.inf,
) -> dict[int, int]:
    """Client -> rank: a client stays at its home rank; clients without a home balance the load.

    The home rank of a client keeps its state. The load of a rank is the number of its clients'
    samples divided by the rank's speed. Clients are placed one by one, the largest first, on the
    rank with the smallest resulting load (Graham, SIAM J. Appl. Math. 1969). Without home ranks and
    with equal speeds, the largest load is at most 4/3 of the optimum.

    Args:
        clients: each client once, in any order.
        sizes: client -> samples that its turn computes; training time is proportional to it.
        homes: client -> its home rank.
        speeds: the speed of each rank.
        largest_load: a client that would push its home rank's load above this number is placed like
            a client without a home. Such clients may push a load above it.
    """
    placed, rest, loads = dict[int, int](), list[int](), [0.0] * len(speeds)
    for client in sorted(clients, key=lambda client: (-sizes[client], client)):
        home = homes.get(client)
        if home is None or loads[home] + sizes[client] / speeds[home] > largest_load:
            rest.append(client)
            continue
        placed[client] = home
        loads[home] += sizes[client] / speeds[home]
    for client in rest:
        added = [load + sizes[client] / speed for load, speed in zip(loads, speeds, strict=True)]
        placed[client] = rank = added.index(min(added))
        loads[rank] = added[rank]
    return placed


def balance(
    clients: Iterable[int], sizes: Sizes, homes: Mapping[int, int], speeds: Sequence[float]
) -> dict[int, int]:
    """Like ``place``, but clients leave the ranks that hold their states if the load is too large.

    A load is too large if it exceeds the largest load of a placement without home ranks.
    """
    anywhere = place(clients, sizes, {}, speeds)
    loads = [0.0] * len(speeds)
    for client, rank in anywhere.items():
        loads[rank] += sizes[client] / speeds[rank]
    return place(anywhere, sizes, homes, speeds, max(loads))


class Placement:
    """Decides which rank trains which client; every rank makes the same decision.

    Args:
        ranks: the processes.
        sizes: client -> samples that its turn computes.
        store: the states of this rank's clients.
        by_time: whether faster ranks get more samples. If so, measured times decide the order of
            sums, and therefore the last bits of the weights.
    """

    def __init__(self, ranks: Ranks, sizes: Sizes, store: ClientStore, by_time: bool) -> None:
        self._ranks, self._sizes, self._store = ranks, sizes, store
        self._speeds = Speeds(ranks.size, by_time)
        self._homes: dict[int, int] = {}

    def local_clients(self, clients: Sequence[int]) -> list[int]:
        """The ``clients`` that this rank handles, in the same order; their states do not move."""
        once, speeds = dict.fromkeys(clients), self._speeds.relative()
        return self._own(clients, place(once, self._sizes, self._homes, speeds))

    def bring(self, clients: Sequence[int]) -> list[int]:
        """Decide which clients this rank trains, fetch their states, and return these clients.

        The result has the order of ``clients``. All ranks must call this function. A state moves
        only if the loads would be unequal otherwise.
        """
        once, speeds = dict.fromkeys(clients), self._speeds.relative()
        placed = balance(once, self._sizes, self._homes, speeds)
        self._move(placed)
        return self._own(clients, placed)

    def timed(self, updates: Iterable[Update]) -> Iterator[Update]:
        """Yield the updates of this rank's clients, and measure the speed of training."""
        return self._speeds.timed(updates)

    def even_out(self) -> None:
        """Move states until equally fast ranks keep equally many states. All ranks must call it."""
        ones = np.broadcast_to(1, len(self._sizes))
        self._move(balance(self._homes, ones, self._homes, self._speeds.relative()))

    def synchronize(self) -> None:
        """Tell all ranks which rank holds each client's state; for use outside of a round."""
        self._ranks.all_reduce([self])

    def contribution(self) -> Contribution:
        """The clients whose state this rank holds, and its samples and seconds of training."""
        return Contribution(items=(self._store.clients_with_state, self._speeds.own_round()))

    def set_reduced(
        self, sums: Tensors, items: Sequence[tuple[list[int], tuple[int, float]]]
    ) -> None:
        """Update each client's home rank and the speeds of all ranks."""
        homes, rounds = zip(*items, strict=True)
        self._homes = {client: rank for rank, clients in enumerate(homes) for client in clients}
        self._speeds.add_round(rounds)

    def _own(self, clients: Sequence[int], placed: Mapping[int, int]) -> list[int]:
        return [client for client in clients if placed[client] == self._ranks.rank]

    def _move(self, placed: Mapping[int, int]) -> None:
        """Move the state of each client whose new rank differs from its home rank."""
        moves = {
            client: rank for client, rank in placed.items() if self._homes.get(client, rank) != rank
        }
        if not moves:
            return
        for client, state in self._ranks.iterate_gathered(self._leaving(moves)):
            if moves[client] == self._ranks.rank:
                self._store.put(client, state)
        self._homes |= moves

    def _leaving(self, moves: Iterable[int]) -> Iterator[tuple[int, ClientState]]:
        """Take the states that move to other ranks out of the store; yield (client, state)."""
        for client in moves:
            if self._homes[client] == self._ranks.rank:
                yield client, self._store.take(client)
