"""The clients' states between rounds, in RAM up to a bound and on disk beyond it."""

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
"""Bytes written to disk before freed memory is returned to the system (256 MiB)."""


@dataclass(frozen=True)
class _Contents:
    """Which fields of a state are not empty, known without reading it."""

    parts: frozenset[str]
    private: bool
    separate_model: bool
    personal_model: bool

    def __bool__(self) -> bool:
        return bool(self.parts) or self.private or self.separate_model or self.personal_model


class ClientStore:
    """A ``ClientState`` for each client.

    ``with store.open(client) as state`` gives the state to be read and changed. Afterwards its size
    is measured, and the states unused for the longest time are written to disk until the others fit
    into the bound; opening one reads it back. Open states are not counted. Reading a state without
    opening it moves nothing. An empty state takes no memory, so that the cost is that of the
    clients that keep something, whatever the population.

    A state must own its tensors: one that shares memory with the resident module, or with another
    state, no longer does once the state has been written to disk.

    Args:
        remember: whose latest local model is kept for personal evaluation: of all clients that have
            trained (N models at most), of this round's cohort, or of none.
        ram_bytes: the bound, in the device's memory if the tensors are there.
        folder: for the states that exceed the bound; see ``ClientStateFiles``.
    """

    def __init__(self, remember: Remember, ram_bytes: float, folder: Path | None = None) -> None:
        self._remember, self._ram_bytes = remember, ram_bytes
        self._open: dict[int, ClientState] = {}
        self._ram: OrderedDict[int, ClientState] = OrderedDict()  # least recently used first
        self._sizes: dict[int, int] = {}  # bytes of each state in RAM
        self._ram_used = 0  # their sum
        self._untrimmed = 0  # bytes written to disk since freed memory was returned
        self._files = ClientStateFiles(folder)
        self._contents: dict[int, _Contents] = {}  # of the states that are not empty
        self._with_model: set[int] = set()

    def begin_round(self) -> None:
        """Forget the last cohort's models if only the current cohort's are kept."""
        if self._remember == "cohort":
            for client in self.clients_with_model:
                contents = replace(self._contents[client], personal_model=False)
                if not contents:
                    self.discard(client)
                    continue
                self._contents[client] = contents
                if client in self._ram:
                    self._ram[client].personal_model = {}
                    self._measure(client)
            self._with_model.clear()

    @contextmanager
    def open(self, client: int) -> Iterator[ClientState]:
        """This client's state, for the block to read and change.

        Several clients' states may be open at once.

        Raises:
            InputError: the disk is full, or fails.
            RuntimeError: this client's state is open already.
        """
        if client in self._open:
            raise RuntimeError(f"the state of client {client} is open already")
        state = self._open[client] = self._remove(client)
        try:
            yield state
        finally:
            self.put(client, self._open.pop(client))

    def put(self, client: int, state: ClientState) -> None:
        """Store the state of a client that has none here."""
        if self._remember == "off":
            state.personal_model = {}
        parts = frozenset(name for name, memory in state.memories.items() if memory)
        contents = _Contents(
            parts,
            bool(state.private),
            bool(state.separate_model),
            bool(state.personal_model),
        )
        self._forget(client)
        if not contents:
            return
        if contents.personal_model:
            self._with_model.add(client)
        self._contents[client] = contents
        self._ram[client] = state
        self._measure(client)
        while self._ram_used > self._ram_bytes:
            self._spill(next(iter(self._ram)))

    def take(self, client: int) -> ClientState:
        """This client's state, which is then no longer here."""
        state = self._remove(client)
        self._forget(client)
        return state

    def discard(self, client: int) -> None:
        """Delete this client's state."""
        if client in self._ram:
            self._drop(client)
        elif client in self._contents:
            self._files.remove(client)
        self._forget(client)

    def states(self) -> Iterator[tuple[int, ClientState]]:
        """(client, state) of every client with a state, read one after another."""
        for client in self.clients_with_state:
            yield client, self._peek(client)

    def memory(self, client: int, part: str) -> Memory:
        """This client's persistent tensors for this part.

        Changes to the dictionary are kept if the state is open; otherwise it is a copy.
        """
        if client in self._open:
            return self._open[client].memory(part)
        return dict(self._peek(client).memories.get(part, {}))

    def memories(self, part: str) -> Mapping[int, Memory]:
        """Client -> its memory of this part, of every client that has one; read when accessed."""
        clients = sorted(c for c, contents in self._contents.items() if part in contents.parts)
        return _Memories(self, part, dict.fromkeys(clients))

    def private(self, client: int) -> Tensors | None:
        """This client's private weights; None if it has not trained."""
        contents = self._contents.get(client)
        return self._peek(client).private if contents and contents.private else None

    def model(self, client: int) -> Tensors:
        """Every weight of the client's personal model; KeyError if it is not kept."""
        if not self._contents[client].personal_model:
            raise KeyError(client)
        return self._peek(client).personal_model

    @property
    def clients_with_model(self) -> list[int]:
        """The clients whose personal model is kept, in order."""
        return sorted(self._with_model)

    @property
    def clients_with_state(self) -> list[int]:
        """The clients whose state is not empty, in order."""
        return sorted(self._contents)

    def close(self) -> None:
        """Delete all states and the folder."""
        self._ram.clear()
        self._sizes.clear()
        self._contents.clear()
        self._with_model.clear()
        self._ram_used = 0
        self._files.clear()

    def _peek(self, client: int) -> ClientState:
        """The state, from RAM or from disk, where it stays."""
        if client in self._open:
            return self._open[client]
        if client in self._ram:
            return self._ram[client]
        if client not in self._contents:
            return ClientState()
        state = self._files.read(client)
        if not self._contents[client].personal_model:  # dropped since it was written
            state.personal_model = {}
        return state

    def _remove(self, client: int) -> ClientState:
        """Remove the state from RAM or disk and return it."""
        state = self._peek(client)
        if client in self._ram:
            self._drop(client)
        elif client in self._contents:
            self._files.remove(client)
        return state

    def _forget(self, client: int) -> None:
        """This client's state is empty from now on."""
        self._contents.pop(client, None)
        self._with_model.discard(client)

    def _spill(self, client: int) -> None:
        self._files.write(client, self._ram[client])
        self._untrimmed += self._sizes[client]
        self._drop(client)
        if self._untrimmed >= _TRIM_EVERY:
            self._untrimmed = 0
            _return_freed_memory()

    def _drop(self, client: int) -> None:
        del self._ram[client]
        self._ram_used -= self._sizes.pop(client)

    def _measure(self, client: int) -> None:
        size = self._ram[client].nbytes
        self._ram_used += size - self._sizes.get(client, 0)
        self._sizes[client] = size


class _Memories(Mapping[int, Memory]):
    """Client -> its memory of one part; holds only the clients' numbers."""

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


def _return_freed_memory() -> None:
    """Return freed memory to the system; does nothing if the C library is not glibc.

    Freed states leave memory too fragmented for others: without this, the process held nearly twice
    the bound.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
