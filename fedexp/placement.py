"""Which rank a client is trained by."""

from collections.abc import Iterable, Mapping, Sequence

from fedexp.messages import Tensors
from fedexp.ranks import Ranks, Share
from fedexp.store import ClientStore


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
        store: what clients keep at this rank.
    """

    def __init__(self, ranks: Ranks, sizes: Sequence[int], store: ClientStore) -> None:
        self._ranks, self._sizes, self._store = ranks, sizes, store
        self._homes: dict[int, int] = {}

    def mine(self, clients: Sequence[int]) -> list[int]:
        """Those of ``clients`` that this rank takes, in their order."""
        placed = place(dict.fromkeys(clients), self._sizes, self._homes, self._ranks.size)
        return [client for client in clients if placed[client] == self._ranks.rank]

    def settle(self) -> None:
        """Let all ranks know who is at home where, outside of a round."""
        self._ranks.exchange([self])

    def give(self) -> Share:
        """The clients that keep something here."""
        return Share(listed=self._store.keepers)

    def take(self, sums: Tensors, listed: Sequence[list[int]]) -> None:
        """Learn where each client that keeps something is at home."""
        self._homes = {client: rank for rank, kept in enumerate(listed) for client in kept}
