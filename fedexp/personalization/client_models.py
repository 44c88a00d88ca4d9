"""The server's store of the latest tensors of each client, and means of them."""

from collections.abc import Iterable, Iterator, Mapping

from fedexp.contract import Tensors, TensorStore


class ClientModels:
    """A mapping from a client to its latest tensors. Tensors that do not fit into RAM are on disk.

    New tensors of a client get a new name in the store, because stored tensors never change
    (``Part.store``).

    Args:
        store: an empty store, from ``ServerTools.make_store``.
    """

    def __init__(self, store: TensorStore) -> None:
        self.store = store
        self._versions: dict[int, int] = {}

    def __contains__(self, client: int) -> bool:
        return client in self._versions

    def __iter__(self) -> Iterator[int]:
        """The clients in the order of their numbers."""
        return iter(sorted(self._versions))

    def __getitem__(self, client: int) -> Tensors:
        return self.store[_name(client, self._versions[client])]

    def __setitem__(self, client: int, tensors: Tensors) -> None:
        version = self._versions.get(client, 0)
        self.store[_name(client, version + 1)] = tensors
        self._versions[client] = version + 1
        if version:
            del self.store[_name(client, version)]

    def state(self) -> dict[int, int]:
        """The version number of each client's tensors in the store, for a checkpoint."""
        return dict(self._versions)

    def load(self, state: dict[int, int]) -> None:
        """Inverse of ``state``."""
        self._versions = dict(state)


def weighted_mean(
    models: Mapping[int, Tensors] | ClientModels, shares: Mapping[int, float], names: Iterable[str]
) -> Tensors:
    """Compute the mean sum_i a_i w_i / sum_i a_i of clients' tensors, in float64.

    Only one client's tensors at a time are in memory.

    Args:
        models: client -> its tensors w_i.
        shares: client -> a_i. A client with a_i = 0 is left out.
        names: the names of the tensors to average; other tensors are left out.
    """
    names, total = tuple(names), sum(shares.values())
    mean: Tensors = {}
    for client, share in shares.items():
        own = models[client] if share else {}
        for name in names if share else ():
            part = own[name].double() * (share / total)
            mean[name] = mean[name] + part if name in mean else part
    return mean


def _name(client: int, version: int) -> str:
    return f"client_{client}_version_{version}"
