"""Which rank trains which client and has its state."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np

from fedexp.core.messages import Update
from fedexp.distributed.ranks import Contribution, Ranks, Tensors
from fedexp.state.client_state import ClientState
from fedexp.state.client_store import ClientStore
from fedexp.state.speeds import Speeds

Sizes = Sequence[int] | np.ndarray
"""client -> its samples; an array in a large population."""


def place(
    clients: Iterable[int],
    sizes: Sizes,
    homes: Mapping[int, int],
    speeds: Sequence[float],
    largest_load: float = math.inf,
) -> dict[int, int]:
    """Client -> rank: clients with a home rank stay there, the others balance the load.

    A rank's load is the samples of its clients over its speed. Clients are placed largest first
    on the rank that would have the least load with them (Graham, SIAM J. Appl. Math. 1969): without
    home ranks and with equal speeds, the largest load is at most 4/3 of the optimum.

    Args:
        clients: each once, in any order.
        sizes: client -> its samples, to which its training time is proportional.
        homes: client -> the rank that has the client's state.
        speeds: of each rank.
        largest_load: clients that would exceed it at their home rank do not stay there.
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
    """As ``place``, but clients leave their home ranks where these have more than a fair load."""
    anywhere = place(clients, sizes, {}, speeds)
    loads = [0.0] * len(speeds)
    for client, rank in anywhere.items():
        loads[rank] += sizes[client] / speeds[rank]
    return place(anywhere, sizes, homes, speeds, max(loads))


class Placement:
    """Which rank trains which client; every rank computes the same placement.

    Args:
        ranks: the processes.
        sizes: client -> its samples.
        store: the states of the clients at this rank.
        by_time: whether a rank that has trained faster so far gets more samples; then sums, and so
            the last bits of the weights, depend on the clock.
    """

    def __init__(self, ranks: Ranks, sizes: Sizes, store: ClientStore, by_time: bool) -> None:
        self._ranks, self._sizes, self._store = ranks, sizes, store
        self._speeds = Speeds(ranks.size, by_time)
        self._homes: dict[int, int] = {}

    def local_clients(self, clients: Sequence[int]) -> list[int]:
        """Those of ``clients`` whose state is at this rank or that it is to have, in this order."""
        once, speeds = dict.fromkeys(clients), self._speeds.relative()
        return self._own(clients, place(once, self._sizes, self._homes, speeds))

    def bring(self, clients: Sequence[int]) -> list[int]:
        """Those of ``clients`` that this rank trains, in this order, once their states are here.

        All ranks must call it. States move where the ranks would else have unequal loads.
        """
        once, speeds = dict.fromkeys(clients), self._speeds.relative()
        placed = balance(once, self._sizes, self._homes, speeds)
        self._move(placed)
        return self._own(clients, placed)

    def timed(self, updates: Iterable[Update]) -> Iterator[Update]:
        """The same updates, of the clients that ``bring`` gave; measures how fast this rank is."""
        return self._speeds.timed(updates)

    def even_out(self) -> None:
        """Move states so that equally fast ranks have equally many; all ranks must call it."""
        ones = np.broadcast_to(1, len(self._sizes))
        self._move(balance(self._homes, ones, self._homes, self._speeds.relative()))

    def synchronize(self) -> None:
        """Exchange the home ranks outside of a round."""
        self._ranks.all_reduce([self])

    def contribution(self) -> Contribution:
        """The clients whose state is here, and how long this rank trained."""
        return Contribution(items=(self._store.clients_with_state, self._speeds.own_round()))

    def set_reduced(
        self, sums: Tensors, items: Sequence[tuple[list[int], tuple[int, float]]]
    ) -> None:
        """Set each client's home rank, and how fast the ranks are."""
        homes, rounds = zip(*items, strict=True)
        self._homes = {client: rank for rank, clients in enumerate(homes) for client in clients}
        self._speeds.add_round(rounds)

    def _own(self, clients: Sequence[int], placed: Mapping[int, int]) -> list[int]:
        return [client for client in clients if placed[client] == self._ranks.rank]

    def _move(self, placed: Mapping[int, int]) -> None:
        """Move the states of clients that are placed elsewhere than at home."""
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
        """(client, state) of those clients that are here; they are not, afterwards."""
        for client in moves:
            if self._homes[client] == self._ranks.rank:
                yield client, self._store.take(client)
