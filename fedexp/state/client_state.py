"""One client's state, and files of client states."""

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
    """What one client keeps between rounds.

    Attributes:
        memories: part -> this client's memory of it; with ``local.keep_optimizer`` also the state
            of its optimizers.
        private: the weights that are not shared; empty until it has trained.
        separate_model: the weights of its separate personal model, if the method trains one.
        personal_model: every weight of its personal model, which is the latest local model or the
            separate one; empty if it is not kept.
    """

    memories: dict[str, Memory] = field(default_factory=dict)
    private: Tensors = field(default_factory=dict)
    separate_model: Tensors = field(default_factory=dict)
    personal_model: Tensors = field(default_factory=dict)

    def memory(self, part: str) -> Memory:
        """This client's persistent tensors for this part; changes to the dictionary are kept."""
        return self.memories.setdefault(part, {})

    def copy(self) -> "ClientState":
        """A shallow copy: another state with the same tensors."""
        memories = {part: dict(memory) for part, memory in self.memories.items()}
        return ClientState(
            memories, dict(self.private), dict(self.separate_model), dict(self.personal_model)
        )

    @property
    def nbytes(self) -> int:
        """Bytes of the tensors' storages; a storage that several of them share counts once."""
        storages = (tensor.untyped_storage() for tensor in self._tensors())
        return sum({each.data_ptr(): each.nbytes() for each in storages}.values())

    @property
    def method_nbytes(self) -> int:
        """Bytes of what the method makes the client keep: memories, private and separate weights.

        Without ``personal_model``, which is kept for evaluation. A tensor that is stored under
        several names counts once.
        """
        groups = (*self.memories.values(), self.private, self.separate_model)
        tensors = (tensor for group in groups for tensor in group.values())
        sizes = {(t.data_ptr(), t.shape, t.dtype): t.numel() * t.element_size() for t in tensors}
        return sum(sizes.values())

    def _tensors(self) -> Iterator[Tensor]:
        groups = (self.private, self.separate_model, self.personal_model)
        for group in (*self.memories.values(), *groups):
            yield from group.values()


class ClientStateFiles:
    """Client states on disk, one file each; deleted together with this object.

    Tensors are read back bit for bit, with their dtype, strides and device; those that shared
    memory within a state share it again.

    Args:
        folder: for these files only, created at the first write; None uses a temporary one.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder
        self._created: Path | None = None
        self._removal: Callable[[], object] = lambda: None

    def write(self, client: int, state: ClientState) -> None:
        """Raises InputError if the folder cannot be written, or its disk is full."""
        # Not directly into the file, as PyTorch then hides why writing failed.
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
        """Delete the folder with all files."""
        self._removal()
        self._created = None

    def _path(self, client: int) -> Path:
        if self._created is None:
            folder = self._folder or Path(tempfile.mkdtemp(prefix="fedexp-clients-"))
            folder.mkdir(parents=True, exist_ok=True)
            self._removal = weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)
            self._created = folder
        return self._created / f"{client}.pt"

    @contextmanager
    def _disk(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            folder = self._created or self._folder or tempfile.gettempdir()
            raise InputError(
                f"clients.ram_gib: what exceeds it is kept in {folder}, which failed ({error}); "
                "make room there or raise the bound"
            ) from error
