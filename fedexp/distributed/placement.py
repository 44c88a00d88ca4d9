"""Which rank a client is trained by."""

from collections.abc import Callable, Iterable, Mapping, Sequence

from fedexp.distributed.ranks import Contribution, Ranks, Tensors


def place(
    clients: Iterable[int], sizes: Sequence[int], homes: Mapping[int, int], num_ranks: int
) -> dict[int, int]:
    """Client -> rank: those with a home stay there, the others go where there is least to do.

    They are placed longest first (Graham, SIAM J. Appl. Math. 1969): with no homes, the rank that
    has most to do has at most 4/3 of what it would have in the best placement.

    Args:
        clients: each once, in any order.
        sizes: client -> its samples, which stand for the time that it takes.
        homes: client -> the rank that has what the client keeps.
        num_ranks: how many there are.
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
    """Every rank's answer to who trains whom; all come to the same one.

    Args:
        ranks: the processes.
        sizes: client -> its samples.
        keepers: the clients that keep something at this rank.
    """

    def __init__(
        self, ranks: Ranks, sizes: Sequence[int], keepers: Callable[[], list[int]]
    ) -> None:
        self._ranks, self._sizes, self._keepers = ranks, sizes, keepers
        self._homes: dict[int, int] = {}

    def local_clients(self, clients: Sequence[int]) -> list[int]:
        """Those of ``clients`` that this rank takes, in their order."""
        placed = place(dict.fromkeys(clients), self._sizes, self._homes, self._ranks.size)
        return [client for client in clients if placed[client] == self._ranks.rank]

    def synchronize(self) -> None:
        """Let all ranks know who is at home where, outside of a round."""
        self._ranks.all_reduce([self])

    def contribution(self) -> Contribution:
        """The clients that keep something here."""
        return Contribution(items=self._keepers())

    def set_reduced(self, sums: Tensors, items: Sequence[list[int]]) -> None:
        """Learn where each client that keeps something is at home."""
        self._homes = {client: rank for rank, kept in enumerate(items) for client in kept}
