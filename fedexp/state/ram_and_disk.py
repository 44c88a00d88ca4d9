"""A mapping of many tensors, in RAM up to a bound and on disk beyond it."""

from collections.abc import Iterator, MutableMapping
from itertools import count
from pathlib import Path

from fedexp.core.messages import Tensors
from fedexp.state.client_state import ClientState
from fedexp.state.client_store import ClientStore


class RamAndDisk(MutableMapping[str, Tensors]):
    """Name -> tensors, on the CPU; those written the longest time ago wait on disk.

    Args:
        ram_bytes: the bound.
        folder: for the tensors that exceed it, created at the first write; None uses a temporary
            one. It is deleted together with this object.
    """

    def __init__(self, ram_bytes: float, folder: Path | None = None) -> None:
        self._store = ClientStore("off", ram_bytes, folder)
        self._places: dict[str, int] = {}
        self._sizes: dict[str, int] = {}
        self._unused = count()

    def __setitem__(self, name: str, tensors: Tensors) -> None:
        if name in self:
            del self[name]
        self._places[name] = next(self._unused)
        on_cpu = {key: value.detach().cpu() for key, value in tensors.items()}
        self._sizes[name] = sum(value.nbytes for value in on_cpu.values())
        self._store.put(self._places[name], ClientState(private=on_cpu))

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors, in RAM and on disk."""
        return sum(self._sizes.values())

    def __getitem__(self, name: str) -> Tensors:
        return self._store.private(self._places[name]) or {}

    def __delitem__(self, name: str) -> None:
        self._store.discard(self._places.pop(name))
        del self._sizes[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)
