"""Writes the checkpoints of a run, deletes old ones, and finds the checkpoint to resume from."""

import logging
import os
import shutil
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path

from fedexp.core.server import Server
from fedexp.errors import InputError
from fedexp.state.atomic import sync
from fedexp.state.checkpoint import (
    CLIENTS,
    FIXED,
    MANIFEST,
    MEASURES,
    SERVER,
    SYSTEM,
    Checkpoint,
    Manifest,
    Stateful,
    files_of,
    folder_name,
    verified,
)
from fedexp.state.client_state import ClientState
from fedexp.state.files import dump, link_file, write_file
from fedexp.state.run_folder import CHECKPOINTS, IDENTITY, METRICS, checkpoint_folders

LOGGER = logging.getLogger(__name__)

_UNFINISHED, _DAMAGED = ".tmp", ".damaged"
_FLUSHED_AT_ONCE = 8
"""Number of files that are flushed in parallel, which is faster than one after another."""


class Checkpoints:
    """The checkpoints of one run.

    Args:
        folder: the run's folder.
        keep: the number of newest checkpoints to keep.
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
        coordination: Stateful,
        states: Iterable[tuple[int, ClientState]],
        lines: bytes = b"",
        write: bool = True,
    ) -> None:
        """Write a checkpoint, completely or not at all; on return it is on disk.

        Args:
            round: the last round in the checkpoint.
            seconds: the run's time so far.
            server: its weights and the parts' state are saved.
            measures: their state is saved, if there is any.
            coordination: its state is saved, if there is any.
            states: yields (client, state) one at a time, so that not all states must fit into RAM.
            lines: the content of ``metrics.jsonl``.
            write: whether this rank writes; all other ranks only iterate over ``states``.

        Raises:
            InputError: the disk is full or fails; earlier checkpoints are unchanged.
        """
        if not write:
            deque(states, maxlen=0)
            return
        final = self._folder / folder_name(round)
        unfinished = final.with_suffix(_UNFINISHED)
        try:
            self._clear()
            (unfinished / CLIENTS).mkdir(parents=True)
            digests = {
                name: write_file(unfinished / name, content)
                for name, content in self._contents(server, measures, coordination, states, lines)
            }
            digests |= self._write_fixed(unfinished, server)
            manifest = Manifest(round=round, seconds=seconds, files=digests)
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
        """The newest complete checkpoint, or None; damaged ones are renamed, with a warning.

        Raises:
            InputError: a checkpoint cannot be read; it is not changed.
        """
        try:
            self._clear()
            for folder in checkpoint_folders(self._run):
                try:
                    return verified(folder)
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
        coordination: Stateful,
        states: Iterable[tuple[int, ClientState]],
        lines: bytes,
    ) -> Iterator[tuple[str, bytes]]:
        yield METRICS, lines
        if self._identity:
            yield IDENTITY, self._identity
        yield SERVER, dump(server.state_dict())
        if state := measures.state_dict():
            yield MEASURES, dump(state)
        if state := coordination.state_dict():
            yield SYSTEM, dump(state)
        for client, client_state in states:
            yield f"{CLIENTS}/{client}.pt", dump(vars(client_state))

    def _write_fixed(self, folder: Path, server: Server) -> dict[str, str]:
        """Write the server's tensors that never change, or link to the newest checkpoint's files.

        Returns file name -> digest.
        """
        newest = next(iter(checkpoint_folders(self._run)), self._folder)
        written = files_of(newest)
        digests = {}
        for socket, state in server.fixed_state().items():
            (folder / FIXED / socket).mkdir(parents=True)
            for key in state:
                name = f"{FIXED}/{socket}/{key}.pt"
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
        """Delete a checkpoint; if interrupted, the remaining files do not count as a checkpoint."""
        renamed = path.with_suffix(_UNFINISHED)
        os.replace(path, renamed)
        sync(self._folder)
        shutil.rmtree(renamed)

    def _clear(self) -> None:
        """Delete unfinished checkpoints of killed processes."""
        for path in self._folder.glob(f"round_*{_UNFINISHED}"):
            if path.stem.removeprefix("round_").isdecimal():
                shutil.rmtree(path)


def _seal(folder: Path, manifest: Manifest) -> None:
    """Write the manifest of a checkpoint, and flush all of its files and folders to disk."""
    write_file(folder / MANIFEST, manifest.model_dump_json().encode())
    folders = {str(each) for name in manifest.files for each in Path(name).parents} | {CLIENTS}
    paths = [folder / name for name in (*manifest.files, MANIFEST, *folders)]
    with ThreadPoolExecutor(_FLUSHED_AT_ONCE) as threads:
        list(threads.map(sync, paths))


def _set_aside(folder: Path) -> Path:
    """Rename a damaged checkpoint; returns its new path."""
    names = (f"{folder.name}{_DAMAGED}{number or ''}" for number in count())
    aside = next(path for path in map(folder.with_name, names) if not path.exists())
    os.replace(folder, aside)
    sync(folder.parent)
    return aside
