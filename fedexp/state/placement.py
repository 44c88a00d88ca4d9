"""Which rank trains which client."""

from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np

from fedexp.distributed.ranks import Contribution, Ranks, Tensors

Sizes = Sequence[int] | np.ndarray
"""client -> its samples; an array in a large population."""


def place(
    clients: Iterable[int], sizes: Sizes, homes: Mapping[int, int], num_ranks: int
) -> dict[int, int]:
    """Client -> rank: clients with a home rank stay there, the others balance the load.

    These are placed largest first on the rank with the least load (Graham, SIAM J. Appl. Math.
    1969): without home ranks, the largest load is at most 4/3 of the optimum.

    Args:
        clients: each once, in any order.
        sizes: client -> its samples, to which its training time is proportional.
        homes: client -> the rank that has the client's state.
        num_ranks: the number of ranks.
    """
    placed = {client: homes[client] for client in clients if client in homes}
    loads = [0] * num_ranks
    for client, rank in placed.items():
        loads[rank] += sizes[client]
    rest = (client for client in clients if client not in homes)
    for client in sorted(rest, key=lambda client: (-sizes[client], client)):
        placed[client] = loads.index(min(loads))
        loads[placed[client]] += sizes[client]
    return placed


class Placement:
    """Which rank trains which client; every rank computes the same placement.

    Args:
        ranks: the processes.
        sizes: client -> its samples.
        clients_with_state: the clients whose state is at this rank.
    """

    def __init__(
        self, ranks: Ranks, sizes: Sizes, clients_with_state: Callable[[], list[int]]
    ) -> None:
        self._ranks, self._sizes, self._clients_with_state = ranks, sizes, clients_with_state
        self._homes: dict[int, int] = {}

    def local_clients(self, clients: Sequence[int]) -> list[int]:
        """Those of ``clients`` that this rank trains, in the same order."""
        placed = place(dict.fromkeys(clients), self._sizes, self._homes, self._ranks.size)
        return [client for client in clients if placed[client] == self._ranks.rank]

    def synchronize(self) -> None:
        """Exchange the home ranks outside of a round."""
        self._ranks.all_reduce([self])

    def contribution(self) -> Contribution:
        """The clients whose state is here."""
        return Contribution(items=self._clients_with_state())

    def set_reduced(self, sums: Tensors, items: Sequence[list[int]]) -> None:
        """Set each client's home rank."""
        self._homes = {client: rank for rank, clients in enumerate(items) for client in clients}
