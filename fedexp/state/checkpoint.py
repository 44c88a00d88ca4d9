"""Checkpoints, from which a killed run goes on to the same bits, and the global model at its end.

A checkpoint is a folder, ``checkpoints/round_0010``:

* ``server.pt``: the global weights and what the server halves of the parts know;
* ``clients/<number>.pt``: what each client keeps between rounds;
* ``metrics.jsonl``: the rounds so far;
* ``checkpoint.json``: the round, and the digests of these files.

``torch.load`` reads the ``.pt`` files with ``weights_only=True``. There is no state of random
generators: every draw is keyed by the seed, its purpose, the round and the client.
"""

import hashlib
import io
import logging
import os
import shutil
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from pydantic import BaseModel

from fedexp.core.messages import Tensors
from fedexp.core.server import Server
from fedexp.errors import InputError
from fedexp.state.atomic import write_atomically
from fedexp.state.client_state import ClientState
from fedexp.state.client_store import ClientStore
from fedexp.state.run_folder import CHECKPOINTS, METRICS

LOGGER = logging.getLogger(__name__)

_MANIFEST, _SERVER, _CLIENTS = "checkpoint.json", "server.pt", "clients"
_UNFINISHED = ".tmp"


class _Manifest(BaseModel):
    """``checkpoint.json``; ``files`` is name -> digest."""

    round: int
    seconds: float
    files: dict[str, str]


@dataclass(frozen=True)
class Checkpoint:
    """One that lies on disk, whole.

    Attributes:
        folder: where it lies.
        round: the last round in it.
        seconds: how long the run had taken.
    """

    folder: Path
    round: int
    seconds: float

    @property
    def metrics(self) -> bytes:
        """``metrics.jsonl`` up to this round."""
        return (self.folder / METRICS).read_bytes()

    def restore(
        self,
        server: Server,
        store: ClientStore,
        device: torch.device,
        mine: Callable[[Sequence[int]], Iterable[int]],
    ) -> None:
        """Put everything back where it was.

        Args:
            server: gets its weights and the parts' state back.
            store: gets what clients keep, as far as they are ``mine``.
            device: of the clients' tensors.
            mine: those of some clients that this rank takes.
        """
        server.load_state_dict(_load(self.folder / _SERVER, torch.device("cpu")))
        files = {int(path.stem): path for path in (self.folder / _CLIENTS).iterdir()}
        for client in mine(sorted(files)):
            store.put(client, ClientState(**_load(files[client], device)))


class Checkpoints:
    """The checkpoints of one run.

    Args:
        folder: the run's folder.
        keep: how many of the newest stay.
    """

    def __init__(self, folder: Path, keep: int) -> None:
        self._run, self._keep = folder, keep
        self._folder = folder / CHECKPOINTS

    def save(
        self,
        round: int,
        seconds: float,
        server: Server,
        states: Iterable[tuple[int, ClientState]],
        write: bool = True,
    ) -> None:
        """Write one, whole or not at all.

        Args:
            round: the last round in it.
            seconds: how long the run has taken.
            server: the weights, and the parts' state.
            states: client and what it keeps, one by one, so that RAM need not hold all.
            write: whether this rank writes; one that does not only lets its ``states`` go.

        Raises:
            InputError: the disk is full, or fails; those before are as they were.
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
                name: _write(unfinished / name, content)
                for name, content in self._contents(server, states)
            }
            about = _Manifest(round=round, seconds=seconds, files=digests)
            _write(unfinished / _MANIFEST, about.model_dump_json().encode())
            for name in (*digests, _MANIFEST, _CLIENTS, ""):
                _sync(unfinished / name)
            os.replace(unfinished, final)
            _sync(self._folder)
        except OSError as error:
            shutil.rmtree(unfinished, ignore_errors=True)
            saved = self._names()
            before = f"; {self._folder / saved[0]} is whole" if saved else ""
            raise InputError(
                f"checkpoint: {final} cannot be written ({error}){before}; make room and go on "
                f"by resume={self._run}"
            ) from error
        for name in self._names()[self._keep :]:
            self._discard(self._folder / name)

    def latest(self) -> Checkpoint | None:
        """The newest that is whole; a damaged one is named in a warning and removed."""
        self._clear()
        for name in self._names():
            try:
                return _verified(self._folder / name)
            except (OSError, ValueError) as error:
                reason = str(error).partition("\n")[0]
                LOGGER.warning(
                    "%s is damaged (%s); going back to the one before", self._folder / name, reason
                )
                self._discard(self._folder / name)
        return None

    def _contents(
        self, server: Server, states: Iterable[tuple[int, ClientState]]
    ) -> Iterator[tuple[str, bytes]]:
        yield METRICS, (self._run / METRICS).read_bytes()
        yield _SERVER, _dump(server.state_dict())
        for client, state in states:
            yield f"{_CLIENTS}/{client}.pt", _dump(vars(state))

    def _names(self) -> list[str]:
        """Those with a finished name, the newest first."""
        found = [path.name for path in self._folder.glob("round_*") if not path.suffix]
        return sorted(found, key=lambda name: int(name.removeprefix("round_")), reverse=True)

    def _discard(self, path: Path) -> None:
        """Remove it so that a kill in between leaves nothing that looks like one."""
        doomed = path.with_suffix(_UNFINISHED)
        os.replace(path, doomed)
        shutil.rmtree(doomed)

    def _clear(self) -> None:
        """Remove what a killed process left unfinished."""
        for path in self._folder.glob(f"*{_UNFINISHED}"):
            shutil.rmtree(path)


def save_weights(weights: Tensors, folder: Path) -> Path:
    """Write the global weights, tensors by name, to ``folder/checkpoints/final.pt``."""
    path = folder / CHECKPOINTS / "final.pt"
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, _dump({name: value.cpu() for name, value in weights.items()}))
    return path


def load_weights(path: Path) -> Tensors:
    """What ``save_weights`` wrote, on the CPU."""
    weights: Tensors = _load(path, torch.device("cpu"))
    return weights


def _verified(folder: Path) -> Checkpoint:
    """The checkpoint in ``folder``. Raises ValueError or OSError if it is damaged."""
    about = _Manifest.model_validate_json((folder / _MANIFEST).read_bytes())
    for name, expected in about.files.items():
        if _digest((folder / name).read_bytes()) != expected:
            raise ValueError(f"{name} has changed")
    if folder.name != _name(about.round):
        raise ValueError(f"{_MANIFEST} has changed")
    return Checkpoint(folder, about.round, about.seconds)


def _name(round: int) -> str:
    return f"round_{round:04d}"


def _dump(value: Any) -> bytes:
    # Not straight into the file: there PyTorch hides why writing failed.
    content = io.BytesIO()
    torch.save(value, content)
    return content.getvalue()


def _load(path: Path, device: torch.device) -> Any:
    return torch.load(path, weights_only=True, map_location=device)


def _write(path: Path, content: bytes) -> str:
    """Returns the digest."""
    path.write_bytes(content)
    return _digest(content)


def _digest(content: bytes) -> str:
    return hashlib.blake2b(content, digest_size=16).hexdigest()


def _sync(path: Path) -> None:
    """Wait until the disk has this file, or this folder's list of names."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
