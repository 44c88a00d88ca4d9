"""Checkpoints, from which a killed run resumes with identical results; the final global model.

A checkpoint is a folder, ``checkpoints/round_0010``:

* ``server.pt``: the global weights and the state of the parts' server halves;
* ``measures.pt``: the state of the measures, if they have one;
* ``clients/<number>.pt``: each client's state;
* ``fixed/<socket>/<name>.pt``: server tensors of a part that never change, if it has any; all
  checkpoints share one file through hard links, if the disk allows them;
* ``metrics.jsonl``: the rounds so far;
* ``identity.json``: a copy of the run's ``run.json``;
* ``checkpoint.json``: the round and the digests of these files.

A checkpoint whose files do not fit their digests is renamed to ``round_0010.damaged``. One that
cannot be read is not changed: the disk may work again later.

``torch.load`` reads the ``.pt`` files with ``weights_only=True``. No state of random
generators is needed: every draw is keyed by the seed, its purpose, the round and the client.
"""

import logging
import os
import shutil
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from pickle import UnpicklingError
from typing import Any, Protocol

import torch
from pydantic import BaseModel

from fedexp.core.messages import Tensors
from fedexp.core.server import Server
from fedexp.errors import InputError
from fedexp.state.atomic import sync, write_durably
from fedexp.state.client_state import ClientState
from fedexp.state.client_store import ClientStore
from fedexp.state.files import digest, dump, link_file, load, write_file
from fedexp.state.run_folder import (
    CHECKPOINTS,
    FINAL,
    IDENTITY,
    METRICS,
    Identity,
    checkpoint_folders,
    parse_identity,
    saved_weights,
)

LOGGER = logging.getLogger(__name__)

_MANIFEST, _SERVER, _CLIENTS = "checkpoint.json", "server.pt", "clients"
_FIXED = "fixed"
_MEASURES = "measures.pt"
_UNFINISHED, _DAMAGED = ".tmp", ".damaged"
_FLUSHED_AT_ONCE = 8
"""Number of files that are flushed at the same time; a disk writes them together."""


class _Manifest(BaseModel):
    """``checkpoint.json``; ``files`` is name -> digest."""

    round: int
    seconds: float
    files: dict[str, str]


class Stateful(Protocol):
    """An object whose state is saved."""

    def state_dict(self) -> dict[str, Any]:
        """The state; empty if there is none."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Inverse of ``state_dict``."""


@dataclass(frozen=True)
class Checkpoint:
    """A complete checkpoint on disk.

    Attributes:
        folder: its folder.
        round: the last round in it.
        seconds: the run's time up to that round.
        files: names of its files; others in the folder are not part of it.
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
        """The run that wrote it; None if it is older than this file."""
        if IDENTITY not in self.files:
            return None
        return parse_identity((self.folder / IDENTITY).read_bytes())

    def restore(
        self,
        server: Server,
        measures: Stateful,
        store: ClientStore,
        device: torch.device,
        local_clients: Callable[[Sequence[int]], Iterable[int]],
    ) -> None:
        """Restore the server, the measures and the client states.

        Args:
            server: receives its weights and the parts' state.
            measures: receive their state, if they had any.
            store: receives the states of this rank's clients.
            device: for the tensors of measures and clients.
            local_clients: selects this rank's clients from the given ones.
        """
        server.load_state_dict(load(self.folder / _SERVER, torch.device("cpu")))
        server.load_fixed_state(
            {socket: _FixedState(paths) for socket, paths in self._fixed().items()}
        )
        if _MEASURES in self.files:
            measures.load_state_dict(load(self.folder / _MEASURES, device))
        paths = [self.folder / name for name in self.files if name.startswith(f"{_CLIENTS}/")]
        files = {int(path.stem): path for path in paths}
        for client in local_clients(sorted(files)):
            store.put(client, ClientState(**load(files[client], device)))

    def _fixed(self) -> dict[str, dict[str, Path]]:
        """Socket -> name -> file of its part's fixed state."""
        found: dict[str, dict[str, Path]] = defaultdict(dict)
        for path in (Path(name) for name in self.files):
            if path.parts[0] == _FIXED:
                found[path.parts[1]][path.stem] = self.folder / path
        return found


class Checkpoints:
    """The checkpoints of one run.

    Args:
        folder: the run's folder.
        keep: number of checkpoints to keep, the newest ones.
        identity: the content of the run's ``run.json``; every checkpoint gets a copy.
    """

    def __init__(self, folder: Path, keep: int, identity: bytes = b"") -> None:
        self._run, self._keep, self._identity = folder, keep, identity
        self._folder = folder / CHECKPOINTS

    def save(
        self,
        round: int,
        seconds: float,
        server: Server,
        measures: Stateful,
        states: Iterable[tuple[int, ClientState]],
        lines: bytes = b"",
        write: bool = True,
    ) -> None:
        """Write a checkpoint, completely or not at all; it is on disk when this returns.

        Args:
            round: the last round in it.
            seconds: the run's time so far.
            server: its weights and the parts' state are saved.
            measures: their state is saved, if they have any.
            states: (client, state), one at a time, so that they need not all fit into RAM.
            lines: the content of ``metrics.jsonl``.
            write: whether this rank writes; others only iterate over ``states``.

        Raises:
            InputError: the disk is full or fails; earlier checkpoints are unchanged.
        """
        if not write:
            deque(states, maxlen=0)
            return
        final = self._folder / _name(round)
        unfinished = final.with_suffix(_UNFINISHED)
        try:
            self._clear()
            (unfinished / _CLIENTS).mkdir(parents=True)
            digests = {
                name: write_file(unfinished / name, content)
                for name, content in self._contents(server, measures, states, lines)
            }
            digests |= self._write_fixed(unfinished, server)
            manifest = _Manifest(round=round, seconds=seconds, files=digests)
            _seal(unfinished, manifest)
            os.replace(unfinished, final)
            for folder in (self._folder, self._run):
                sync(folder)
        except OSError as error:
            shutil.rmtree(unfinished, ignore_errors=True)
            raise InputError(self._why_not(final, error)) from error
        try:
            for path in checkpoint_folders(self._run)[self._keep :]:
                self._discard(path)
        except OSError as error:
            LOGGER.warning("%s: old checkpoints cannot be deleted (%s)", self._folder, error)

    def latest(self) -> Checkpoint | None:
        """The newest complete checkpoint; damaged ones are renamed, with a warning.

        Raises:
            InputError: a checkpoint cannot be read; nothing is changed.
        """
        try:
            self._clear()
            for folder in checkpoint_folders(self._run):
                try:
                    return _verified(folder)
                except ValueError as error:
                    aside = _set_aside(folder)
                    LOGGER.warning(
                        "%s is damaged (%s), now named %s; going back to the one before",
                        folder,
                        str(error).partition("\n")[0],
                        aside.name,
                    )
        except OSError as error:
            raise InputError(
                f"{error.filename or self._folder}: cannot be read ({error.strerror}); nothing was "
                f"deleted; resume with resume={self._run} when the disk works again"
            ) from error
        return None

    def _contents(
        self,
        server: Server,
        measures: Stateful,
        states: Iterable[tuple[int, ClientState]],
        lines: bytes,
    ) -> Iterator[tuple[str, bytes]]:
        yield METRICS, lines
        if self._identity:
            yield IDENTITY, self._identity
        yield _SERVER, dump(server.state_dict())
        if state := measures.state_dict():
            yield _MEASURES, dump(state)
        for client, client_state in states:
            yield f"{_CLIENTS}/{client}.pt", dump(vars(client_state))

    def _write_fixed(self, folder: Path, server: Server) -> dict[str, str]:
        """Write the server's fixed state, or link the files of the newest checkpoint.

        Returns name -> digest.
        """
        newest = next(iter(checkpoint_folders(self._run)), self._folder)
        written = _files(newest)
        digests = {}
        for socket, state in server.fixed_state().items():
            (folder / _FIXED / socket).mkdir(parents=True)
            for key in state:
                name = f"{_FIXED}/{socket}/{key}.pt"
                if name in written and link_file(newest / name, folder / name):
                    digests[name] = written[name]
                else:
                    digests[name] = write_file(folder / name, dump(state[key]))
        return digests

    def _why_not(self, path: Path, error: OSError) -> str:
        """The error line for a failed write, with the checkpoint to resume from."""
        saved = checkpoint_folders(self._run)
        before = f"; {saved[0]} is complete" if saved else ""
        return (
            f"checkpoint: {path} cannot be written ({error}){before}; free some space and resume "
            f"with resume={self._run}"
        )

    def _discard(self, path: Path) -> None:
        """Delete a checkpoint; an interrupted deletion leaves no complete-looking one."""
        renamed = path.with_suffix(_UNFINISHED)
        os.replace(path, renamed)
        sync(self._folder)
        shutil.rmtree(renamed)

    def _clear(self) -> None:
        """Delete unfinished checkpoints of killed processes."""
        for path in self._folder.glob(f"round_*{_UNFINISHED}"):
            if path.stem.removeprefix("round_").isdecimal():
                shutil.rmtree(path)


class _FixedState(Mapping[str, Tensors]):
    """Name -> tensors of one part's fixed state; read from its file when accessed."""

    def __init__(self, files: Mapping[str, Path]) -> None:
        self._files = files

    def __getitem__(self, name: str) -> Tensors:
        tensors: Tensors = load(self._files[name], torch.device("cpu"))
        return tensors

    def __iter__(self) -> Iterator[str]:
        return iter(self._files)

    def __len__(self) -> int:
        return len(self._files)


def save_weights(weights: Tensors, folder: Path, name: str = FINAL) -> Path:
    """Write a global model's tensors to ``folder/checkpoints/NAME.pt``."""
    path = saved_weights(folder, name)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_durably(path, dump({name: value.cpu() for name, value in weights.items()}))
    sync(folder)
    return path


def load_weights(path: Path) -> Tensors:
    """The tensors that ``save_weights`` wrote, on the CPU."""
    weights: Tensors = load(path, torch.device("cpu"))
    return weights


def load_personal_model(folder: Path, client: int) -> Tensors:
    """The weights of a client's personal model in the newest checkpoint of a run, on the CPU.

    Raises:
        InputError: there is no checkpoint, it is damaged, or the client's model is not in it.
    """
    name = f"{_CLIENTS}/{client}.pt"
    newest = next(iter(checkpoint_folders(folder)), None)
    if newest is None:
        raise InputError(
            f"{folder}: has no checkpoint, which has the clients' models; checkpoint.keep of at "
            "least 1 keeps it"
        )
    state: dict[str, Any] = {}
    if name in (files := _files(newest)):
        try:
            if digest((newest / name).read_bytes()) != files[name]:
                raise ValueError("has changed")
            state = load(newest / name, torch.device("cpu"))
        except (OSError, ValueError, RuntimeError, UnpicklingError) as error:
            raise InputError(f"{newest / name}: cannot be read ({error})") from error
    weights: Tensors = state.get("personal_model", {})
    if not weights:
        raise InputError(
            f"{folder}: has no personal model of client {client}; it has not trained, or the "
            "measure of personal models, which keeps them, was left out or had another cohort"
        )
    return weights


def _seal(folder: Path, manifest: _Manifest) -> None:
    """Write the manifest of a checkpoint, and flush all of its files and folders to disk."""
    write_file(folder / _MANIFEST, manifest.model_dump_json().encode())
    folders = {str(each) for name in manifest.files for each in Path(name).parents} | {_CLIENTS}
    paths = [folder / name for name in (*manifest.files, _MANIFEST, *folders)]
    with ThreadPoolExecutor(_FLUSHED_AT_ONCE) as threads:
        list(threads.map(sync, paths))


def _files(folder: Path) -> dict[str, str]:
    """File name -> digest; empty if ``folder`` has no checkpoint or a damaged one."""
    try:
        return _Manifest.model_validate_json((folder / _MANIFEST).read_bytes()).files
    except (OSError, ValueError):
        return {}


def _verified(folder: Path) -> Checkpoint:
    """The checkpoint in ``folder``.

    Raises:
        ValueError: it is damaged.
        OSError: it cannot be read, perhaps only now.
    """
    try:
        manifest = _Manifest.model_validate_json((folder / _MANIFEST).read_bytes())
        for name, expected in manifest.files.items():
            if digest((folder / name).read_bytes()) != expected:
                raise ValueError(f"{name} has changed")
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError) as error:
        raise ValueError(f"{Path(error.filename).name} is missing") from error
    if folder.name != _name(manifest.round):
        raise ValueError(f"{_MANIFEST} has changed")
    return Checkpoint(folder, manifest.round, manifest.seconds, tuple(manifest.files))


def _set_aside(folder: Path) -> Path:
    """Rename a damaged checkpoint; returns its new path."""
    names = (f"{folder.name}{_DAMAGED}{number or ''}" for number in count())
    aside = next(path for path in map(folder.with_name, names) if not path.exists())
    os.replace(folder, aside)
    sync(folder.parent)
    return aside


def _name(round: int) -> str:
    return f"round_{round:04d}"
