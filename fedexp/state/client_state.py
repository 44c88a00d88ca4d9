"""One client's state, and how states lie on disk."""

import io
import shutil
import tempfile
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from fedexp.core.messages import Tensors
from fedexp.core.part import Memory
from fedexp.errors import InputError
from fedexp.state.atomic import write_atomically


@dataclass
class ClientState:
    """What one client keeps for itself between rounds.

    Attributes:
        memories: part -> this client's memory of it.
        private: the weights that it never shares, empty as long as it has not trained.
        separate_model: the weights of a whole model that it trains for itself beside the shared
            one, if any.
        personal_model: every weight of its personal model, which is the latest local model unless
            it has a separate one; empty if it is not remembered.
    """

    memories: dict[str, Memory] = field(default_factory=dict)
    private: Tensors = field(default_factory=dict)
    separate_model: Tensors = field(default_factory=dict)
    personal_model: Tensors = field(default_factory=dict)

    def memory(self, part: str) -> Memory:
        """This client's persistent tensors for this part; changes to the dictionary are kept."""
        return self.memories.setdefault(part, {})

    def copy(self) -> "ClientState":
        """Another state with the same tensors in it."""
        memories = {part: dict(memory) for part, memory in self.memories.items()}
        return ClientState(
            memories, dict(self.private), dict(self.separate_model), dict(self.personal_model)
        )

    @property
    def nbytes(self) -> int:
        """Bytes that its tensors hold on to; what several of them share counts once."""
        storages = (tensor.untyped_storage() for tensor in self._tensors())
        return sum({each.data_ptr(): each.nbytes() for each in storages}.values())

    def _tensors(self) -> Iterator[Tensor]:
        groups = (self.private, self.separate_model, self.personal_model)
        for group in (*self.memories.values(), *groups):
            yield from group.values()


class ClientStateFiles:
    """Drawers on disk, one file a client; they go when this object goes.

    Tensors come back bit for bit, with their dtype, strides and device, and those that shared
    memory within a state share it again.

    Args:
        folder: for these files alone, made when the first is written; if None, a temporary one.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder
        self._made: Path | None = None
        self._removal: Callable[[], object] = lambda: None

    def write(self, client: int, state: ClientState) -> None:
        """Raises InputError if the folder cannot be written, or its disk is full."""
        # Not straight into the file: there PyTorch hides why writing failed.
        content = io.BytesIO()
        torch.save(vars(state), content)
        with self._disk():
            write_atomically(self._path(client), content.getbuffer())

    def read(self, client: int) -> ClientState:
        """The state last written. Raises InputError if its file cannot be read."""
        with self._disk(), self._path(client).open("rb") as file:
            return ClientState(**torch.load(file, weights_only=True))

    def remove(self, client: int) -> None:
        """Delete this client's file."""
        with self._disk():
            self._path(client).unlink()

    def clear(self) -> None:
        """Delete the folder and all that it holds."""
        self._removal()
        self._made = None

    def _path(self, client: int) -> Path:
        if self._made is None:
            folder = self._folder or Path(tempfile.mkdtemp(prefix="fedexp-clients-"))
            folder.mkdir(parents=True, exist_ok=True)
            self._removal = weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)
            self._made = folder
        return self._made / f"{client}.pt"

    @contextmanager
    def _disk(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            folder = self._made or self._folder or tempfile.gettempdir()
            raise InputError(
                f"clients.ram_gib: what exceeds it is kept in {folder}, which failed ({error}); "
                "make room there or raise the bound"
            ) from error
