"""What clients keep for themselves between rounds, in RAM up to a bound and on disk beyond it."""

import ctypes
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from fedexp.core.messages import Tensors
from fedexp.core.part import Memory
from fedexp.state.client_state import ClientState, ClientStateFiles

Remember = Literal["all", "cohort", "off"]

_TRIM_EVERY = 2**28
"""Bytes that go to disk before the allocator is asked to give back what they freed (256 MiB)."""


@dataclass(frozen=True)
class _Label:
    """What is known of a state without opening it: what it has something of."""

    parts: frozenset[str]
    private: bool
    separate_model: bool
    personal_model: bool


class ClientStore:
    """A state for each client: the parts' memories, private weights, latest local model.

    A client's turn is ``with store.open(client) as state``. Afterwards its state is measured, and
    those whose turn is longest past go to disk until the rest fits into the bound; the next turn
    brings them back. The states that are open now come on top of the bound. Reading leaves all in
    its place.

    What is put into a state must be its own: a tensor that shares memory with the resident module,
    or with another client's state, is cut loose from it as soon as the state goes to disk.

    Args:
        remember: whose latest local model is kept for personal evaluation: everybody's who ever
            trained (N models at most), only this round's cohort's, or nobody's.
        ram_bytes: the bound, on the device's memory if that is where the tensors are.
        folder: what exceeds the bound goes there; see ``ClientStateFiles``.
    """

    def __init__(self, remember: Remember, ram_bytes: float, folder: Path | None = None) -> None:
        self._remember, self._ram_bytes = remember, ram_bytes
        self._open: dict[int, ClientState] = {}
        self._ram: OrderedDict[int, ClientState] = OrderedDict()  # the longest unused first
        self._sizes: dict[int, int] = {}  # of those in RAM, in bytes
        self._used = 0  # their sum
        self._untrimmed = 0  # bytes that went to disk, up to _TRIM_EVERY
        self._files = ClientStateFiles(folder)
        self._labels: dict[int, _Label] = {}

    def begin_round(self) -> None:
        """A new cohort comes in."""
        if self._remember == "cohort":
            for client in self.remembered:
                self._labels[client] = replace(self._labels[client], personal_model=False)
                if client in self._ram:
                    self._ram[client].personal_model = {}
                    self._measure(client)

    @contextmanager
    def open(self, client: int) -> Iterator[ClientState]:
        """This client's turn: what the block leaves in the state is kept.

        Several clients may have their turn at once.

        Raises:
            InputError: the disk is full, or fails.
            RuntimeError: it is this client's turn already.
        """
        if client in self._open:
            raise RuntimeError(f"the state of client {client} is open already")
        state = self._open[client] = self._take(client)
        try:
            yield state
        finally:
            self.put(client, self._open.pop(client))

    def put(self, client: int, state: ClientState) -> None:
        """Take in the state of a client that has none here, as ``states`` gave it."""
        if self._remember == "off":
            state.personal_model = {}
        parts = frozenset(name for name, memory in state.memories.items() if memory)
        self._labels[client] = _Label(
            parts,
            bool(state.private),
            bool(state.separate_model),
            bool(state.personal_model),
        )
        self._ram[client] = state
        self._measure(client)
        while self._used > self._ram_bytes:
            self._spill(next(iter(self._ram)))

    def states(self) -> Iterator[tuple[int, ClientState]]:
        """Every keeper and its state, one after another: a checkpoint need not hold them all."""
        for client in self.keepers:
            yield client, self._look(client)

    def memory(self, client: int, part: str) -> Memory:
        """This client's persistent tensors for this part.

        Changes to the dictionary are kept if it is the client's turn; otherwise it is a copy.
        """
        if client in self._open:
            return self._open[client].memory(part)
        return dict(self._look(client).memories.get(part, {}))

    def memories(self, part: str) -> Mapping[int, Memory]:
        """Client -> its memory of this part, of every client that has one, read when asked for."""
        clients = sorted(c for c, label in self._labels.items() if part in label.parts)
        return _Memories(self, part, dict.fromkeys(clients))

    def private(self, client: int) -> Tensors | None:
        """The weights that this client never shares, once it has trained."""
        label = self._labels.get(client)
        return self._look(client).private if label and label.private else None

    def model(self, client: int) -> Tensors:
        """The client's latest local model, every weight of it."""
        if not self._labels[client].personal_model:
            raise KeyError(client)
        return self._look(client).personal_model

    @property
    def remembered(self) -> list[int]:
        """The clients whose latest local model is known, in order."""
        return sorted(client for client, label in self._labels.items() if label.personal_model)

    @property
    def keepers(self) -> list[int]:
        """The clients that keep anything here, in order."""
        nothing = _Label(frozenset(), private=False, separate_model=False, personal_model=False)
        return sorted(client for client, label in self._labels.items() if label != nothing)

    def close(self) -> None:
        """Forget everything and remove the folder."""
        self._ram.clear()
        self._sizes.clear()
        self._labels.clear()
        self._used = 0
        self._files.clear()

    def _look(self, client: int) -> ClientState:
        """The state where it is, or what the disk has of it."""
        if client in self._open:
            return self._open[client]
        if client in self._ram:
            return self._ram[client]
        if client not in self._labels:
            return ClientState()
        state = self._files.read(client)
        if not self._labels[client].personal_model:  # forgotten since it was written
            state.personal_model = {}
        return state

    def _take(self, client: int) -> ClientState:
        """The state, which is from now on neither in RAM nor on disk."""
        state = self._look(client)
        if client in self._ram:
            self._drop(client)
        elif client in self._labels:
            self._files.remove(client)
        return state

    def _spill(self, client: int) -> None:
        self._files.write(client, self._ram[client])
        self._untrimmed += self._sizes[client]
        self._drop(client)
        if self._untrimmed >= _TRIM_EVERY:
            self._untrimmed = 0
            _give_back_freed_memory()

    def _drop(self, client: int) -> None:
        del self._ram[client]
        self._used -= self._sizes.pop(client)

    def _measure(self, client: int) -> None:
        size = self._ram[client].nbytes
        self._used += size - self._sizes.get(client, 0)
        self._sizes[client] = size


class _Memories(Mapping[int, Memory]):
    """Client -> its memory of one part; only the clients' numbers are held."""

    def __init__(self, store: ClientStore, part: str, clients: Mapping[int, None]) -> None:
        self._store, self._part, self._clients = store, part, clients

    def __getitem__(self, client: int) -> Memory:
        if client not in self._clients:
            raise KeyError(client)
        return self._store.memory(client, self._part)

    def __iter__(self) -> Iterator[int]:
        return iter(self._clients)

    def __len__(self) -> int:
        return len(self._clients)


def _give_back_freed_memory() -> None:
    """Return what is free to the system; does nothing where the C library is not glibc.

    The holes that states leave are too fragmented to be filled by others: without this, the
    process held nearly twice the bound.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
