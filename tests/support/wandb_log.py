"""Reads back what W&B recorded offline."""

import json
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from wandb.proto.wandb_internal_pb2 import Record  # type: ignore[attr-defined]

_BLOCK = 32 * 1024
_FILE_HEADER = 7
_CHUNK_HEADER = struct.Struct("<IHB")  # checksum, length, type
_FULL, _LAST = 1, 4
_PATIENCE_S = 20


def run_files(folder: Path) -> list[Path]:
    """The transaction logs of the runs recorded in ``folder/wandb``."""
    return sorted(folder.glob("wandb/offline-run-*/run-*.wandb"))


def records(path: Path) -> list[Record]:
    """The records of a closed run, in order; W&B may still be writing for a moment."""
    deadline = time.monotonic() + _PATIENCE_S
    while time.monotonic() < deadline:
        found = list(_parse(path.read_bytes()))
        if found and found[-1].HasField("exit"):
            return found
        time.sleep(0.02)
    raise TimeoutError(f"{path}: the run was not closed")


def _parse(data: bytes) -> Iterator[Record]:
    position, payload = _FILE_HEADER, b""
    while position + _CHUNK_HEADER.size <= len(data):
        left = _BLOCK - position % _BLOCK
        if left < _CHUNK_HEADER.size:  # the rest of the block is padding
            position += left
            continue
        _, length, kind = _CHUNK_HEADER.unpack_from(data, position)
        position += _CHUNK_HEADER.size
        if position + length > len(data):  # half written
            return
        payload += data[position : position + length]
        position += length
        if kind in (_FULL, _LAST):
            yield Record.FromString(payload)
            payload = b""


def history(path: Path) -> list[dict[str, Any]]:
    """What each ``log`` call recorded, without W&B's own keys."""
    return [_items(each.history.item) for each in records(path) if each.HasField("history")]


def summary(path: Path) -> dict[str, Any]:
    """The last value of each summary key."""
    merged: dict[str, Any] = {}
    for each in records(path):
        if each.HasField("summary"):
            merged |= _items(each.summary.update)
    return merged


def config(path: Path) -> dict[str, Any]:
    """The experiment's config."""
    run = next(each.run for each in records(path) if each.HasField("run"))
    return _items(run.config.update)


def _items(items: Any) -> dict[str, Any]:
    pairs = (("/".join(item.nested_key) or item.key, json.loads(item.value_json)) for item in items)
    return {key: value for key, value in pairs if not key.startswith("_")}
