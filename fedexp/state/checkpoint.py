"""A checkpoint, from which a killed run resumes with identical results.

A checkpoint is a folder, ``checkpoints/round_0010``:

* ``server.pt``: the global weights and the state of the parts' server halves;
* ``measures.pt``: the state of the measures, if they have any;
* ``system.pt``: the simulated time and the clients in flight, if there are any;
* ``clients/<number>.pt``: each client's state;
* ``fixed/<socket>/<name>.pt``: the tensors of a part's server half that never change, if any; all
  checkpoints share one file through hard links, if the disk allows them;
* ``metrics.jsonl``: the metrics of the rounds so far;
* ``identity.json``: a copy of the run's ``run.json``;
* ``checkpoint.json``: the round, the run's time, and the digests (hashes) of the other files.

A checkpoint whose files do not fit their digests is renamed to ``round_0010.damaged``. A checkpoint
that cannot be read is not changed: the disk may work again later.

``torch.load`` reads the ``.pt`` files with ``weights_only=True``. Random generators need no saved
state: every draw follows from the seed, the purpose of the draw, the round and the client.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from pydantic import BaseModel

from fedexp.core.messages import Tensors
from fedexp.core.server import Server
from fedexp.errors import InputError
from fedexp.state.client_state import restored_state
from fedexp.state.client_store import ClientStore
from fedexp.state.files import check_finite, digest, load
from fedexp.state.run_folder import IDENTITY, METRICS, Identity, parse_identity

MANIFEST, SERVER, CLIENTS = "checkpoint.json", "server.pt", "clients"
FIXED, MEASURES, SYSTEM = "fixed", "measures.pt", "system.pt"


class Manifest(BaseModel):
    """The content of ``checkpoint.json``; ``files`` maps each file's name to its digest."""

    round: int
    seconds: float
    files: dict[str, str]


class Stateful(Protocol):
    """An object whose state is saved in checkpoints."""

    def state_dict(self) -> dict[str, Any]:
        """The object's state, for a checkpoint; empty if it has none."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the state that ``state_dict`` returned."""


@dataclass(frozen=True)
class Checkpoint:
    """A complete checkpoint on disk.

    Attributes:
        folder: the checkpoint's folder.
        round: the last round in the checkpoint.
        seconds: the run's time up to this round.
        files: names of the checkpoint's files; other files in the folder do not belong to it.
    """

    folder: Path
    round: int
    seconds: float
    files: tuple[str, ...]

    @property
    def metrics(self) -> bytes:
        """``metrics.jsonl`` up to this round."""
        return (self.folder / METRICS).read_bytes()

    @property
    def identity(self) -> Identity | None:
        """The identity of the run that wrote the checkpoint; None if an old version wrote it."""
        if IDENTITY not in self.files:
            return None
        return parse_identity((self.folder / IDENTITY).read_bytes())

    def restore(
        self,
        server: Server,
        measures: Stateful,
        coordination: Stateful,
        store: ClientStore,
        device: torch.device,
        local_clients: Callable[[Sequence[int]], Iterable[int]],
    ) -> None:
        """Restore the server, the measures, the simulated time and the client states.

        Args:
            server: receives its weights and the parts' state.
            measures: receive their saved state, if there is one.
            coordination: receives its saved state, if there is one.
            store: receives the states of this rank's clients.
            device: the device for the tensors of measures, coordination and clients.
            local_clients: selects this rank's clients from the given ones.

        Raises:
            InputError: a file cannot be read, or does not fit this run.
        """
        with _fitting(self.folder / SERVER) as path:
            server.load_state_dict(load(path, torch.device("cpu")))
            check_finite(server.weights, path)
        with _fitting(self.folder / FIXED):
            server.load_fixed_state(self._fixed())
        for name, part in ((MEASURES, measures), (SYSTEM, coordination)):
            if name in self.files:
                with _fitting(self.folder / name) as path:
                    part.load_state_dict(load(path, device))
        with _fitting(self.folder / CLIENTS):
            paths = [self.folder / name for name in self.files if name.startswith(f"{CLIENTS}/")]
            files = {int(path.stem): path for path in paths}
            mine = local_clients(sorted(files))
        for client in mine:
            with _fitting(files[client]) as path:
                store.put(client, restored_state(load(path, device), path))

    def _fixed(self) -> Iterator[tuple[str, str, Tensors]]:
        """(socket, name, tensors) for the server tensors that never change, read one by one."""
        for path in (Path(name) for name in self.files):
            if path.parts[0] == FIXED:
                yield path.parts[1], path.stem, load(self.folder / path, torch.device("cpu"))


@contextmanager
def _fitting(path: Path) -> Iterator[Path]:
    """Yield ``path``; turn an error of the block into an InputError of one line that names it."""
    try:
        yield path
    except InputError:
        raise
    except Exception as error:  # its type depends on the part that restores its state
        reason = str(error).partition("\n")[0]
        raise InputError(
            f"{path}: does not fit this run ({type(error).__name__}: {reason}); move its "
            "checkpoint away to resume from the one before"
        ) from error


def files_of(folder: Path) -> dict[str, str]:
    """File name -> digest, as ``checkpoint.json`` lists them; empty without a valid list."""
    try:
        return Manifest.model_validate_json((folder / MANIFEST).read_bytes()).files
    except (OSError, ValueError):
        return {}


def verified(folder: Path) -> Checkpoint:
    """Compare the files in ``folder`` with their digests; return the checkpoint.

    Raises:
        ValueError: the checkpoint is damaged.
        OSError: the checkpoint cannot be read, perhaps only for now.
    """
    try:
        manifest = Manifest.model_validate_json((folder / MANIFEST).read_bytes())
        for name, expected in manifest.files.items():
            if Path(name).is_absolute() or ".." in Path(name).parts:
                raise ValueError(f"{name} is outside the checkpoint")
            if digest((folder / name).read_bytes()) != expected:
                raise ValueError(f"{name} has changed")
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError) as error:
        raise ValueError(f"{Path(error.filename).name} is missing") from error
    if folder.name != folder_name(manifest.round):
        raise ValueError(f"{MANIFEST} has changed")
    return Checkpoint(folder, manifest.round, manifest.seconds, tuple(manifest.files))


def folder_name(round: int) -> str:
    """The name of the folder of the round's checkpoint."""
    return f"round_{round:04d}"
