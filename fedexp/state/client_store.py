"""Stores the clients' states between rounds."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

from fedexp.core.messages import Tensors
from fedexp.core.part import Memory
from fedexp.state.client_state import ClientState
from fedexp.state.ram_and_disk import RamAndDisk

Remember = Literal["all", "cohort", "off"]
_MODEL = "personal_model"


class ClientStore:
    """Keeps a ``ClientState`` for each client.

    ``with store.open(client) as state`` gives the state for reading and changing. When the block
    ends, the least recently used states are written to disk until the remaining states fit into the
    RAM bound. If an opened state is on disk, it is read back. Open states do not count towards the
    bound. ``memory``, ``memories``, ``private``, ``model`` and ``states`` also read states, but
    leave a state on disk where it is. An empty state takes no memory.

    A state must own its tensors: writing the state to disk ends any sharing of memory with the
    resident module or another state.

    Args:
        remember: the clients whose latest local model is kept for personal evaluation: all clients
            that have trained (at most N models), this round's cohort, or none.
        ram_bytes: largest size of the states in RAM, or in the memory of the tensors' device.
        folder: the folder for the states that do not fit into this size; see ``RamAndDisk``.
    """

    def __init__(self, remember: Remember, ram_bytes: float, folder: Path | None = None) -> None:
        self.remember = remember
        self._open: dict[int, ClientState] = {}
        self._states: RamAndDisk[int, dict[str, Any]] = RamAndDisk(ram_bytes, folder)
        # Client -> names of its non-empty memories and fields, to avoid reading states from disk.
        self._contents: dict[int, frozenset[str]] = {}

    @property
    def keeps_models(self) -> bool:
        """Whether any local models are kept for personal evaluation."""
        return self.remember != "off"

    def begin_round(self) -> None:
        """Forget the last cohort's models if only the current cohort's models are kept."""
        if self.remember != "cohort":
            return
        for client in self.clients_with_model:
            self._contents[client] -= {_MODEL}
            if not self._contents[client]:
                self.discard(client)
            elif self._states.is_in_ram(client):
                self._states[client] = self._states[client] | {_MODEL: {}}

    @contextmanager
    def open(self, client: int) -> Iterator[ClientState]:
        """Yield this client's state for reading and changing.

        Several clients' states may be open at once.

        Raises:
            InputError: the disk is full or fails.
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
        """Store the state of a client that has no state here yet.

        If ``remember`` is "off", the personal model is removed from ``state``.
        """
        if self.remember == "off":
            state.personal_model = {}
        fields = dict(vars(state))
        contents = frozenset(name for name, held in (fields | state.memories).items() if held)
        self._contents.pop(client, None)
        if contents <= {"memories"}:  # all memories are empty
            return
        self._contents[client] = contents - {"memories"}
        self._states[client] = fields

    def take(self, client: int) -> ClientState:
        """Remove and return this client's state; an empty one if the client has none."""
        state = self._remove(client)
        self._contents.pop(client, None)
        return state

    def discard(self, client: int) -> None:
        """Delete this client's state."""
        self._states.pop(client, None)
        self._contents.pop(client, None)

    def states(self) -> Iterator[tuple[int, ClientState]]:
        """Yield (client, state) for every client with a state, reading one at a time."""
        for client in self.clients_with_state:
            yield client, self._peek(client)

    def memory(self, client: int, part: str) -> Memory:
        """This client's memory for this part.

        If the client's state is open, changes to the dictionary are kept. Otherwise the dictionary
        is a copy.
        """
        if client in self._open:
            return self._open[client].memory(part)
        return dict(self._peek(client).memories.get(part, {}))

    def memories(self, part: str) -> Mapping[int, Memory]:
        """Client -> its non-empty memory for this part; a memory is read when accessed."""
        clients = sorted(c for c, contents in self._contents.items() if part in contents)
        return _Memories(self, part, dict.fromkeys(clients))

    def private(self, client: int) -> Tensors | None:
        """This client's private weights; None if there are none, as before its first training."""
        has_private = "private" in self._contents.get(client, ())
        return self._peek(client).private if has_private else None

    def model(self, client: int) -> Tensors:
        """All weights of the client's personal model; KeyError if the model is not kept."""
        if _MODEL not in self._contents[client]:
            raise KeyError(client)
        return self._peek(client).personal_model

    @property
    def clients_with_model(self) -> list[int]:
        """The clients whose personal model is kept, in order."""
        return sorted(c for c, contents in self._contents.items() if _MODEL in contents)

    @property
    def clients_with_state(self) -> list[int]:
        """The clients whose state is not empty, in order."""
        return sorted(self._contents)

    def close(self) -> None:
        """Delete all states and the folder."""
        self._states.clear()
        self._contents.clear()

    def _peek(self, client: int) -> ClientState:
        """Read the state without moving it between RAM and disk."""
        if client in self._open:
            return self._open[client]
        if client not in self._states:
            return ClientState()
        state = ClientState(**self._states[client])
        if _MODEL not in self._contents[client]:  # forgotten after the write to disk
            state.personal_model = {}
        return state

    def _remove(self, client: int) -> ClientState:
        """Remove the state from RAM or disk and return it."""
        state = self._peek(client)
        if client in self._states:
            del self._states[client]
        return state


class _Memories(Mapping[int, Memory]):
    """Client -> its memory for one part; only the clients' numbers stay in RAM."""

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
