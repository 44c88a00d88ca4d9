"""The facts about a federation that a stopped server needs to go on, in the run's folder."""

import json
import secrets
from dataclasses import asdict, dataclass, field
from pathlib import Path

from fedexp.errors import InputError
from fedexp.state.atomic import write_durably

FILE = "federation.json"


@dataclass(frozen=True)
class Record:
    """The facts that ``federation.json`` holds.

    Attributes:
        run: the name under which the nodes store their clients' states for this run.
        sizes: client -> number of its training samples.
        own_data: whether each node reads its own dataset.
        lost: the rounds that a node's missing or refused reply, or its lost state, has changed.
    """

    run: str = field(default_factory=lambda: secrets.token_hex(8))
    sizes: dict[int, int] = field(default_factory=dict)
    own_data: bool = False
    lost: list[int] = field(default_factory=list)


def read_record(folder: Path) -> Record:
    """The record in the run's folder; a new one if there is none.

    Raises:
        InputError: the file is damaged or no record.
    """
    path = folder / FILE
    if not path.is_file():
        return Record()
    try:
        values = json.loads(path.read_bytes())
        sizes = {int(client): int(size) for client, size in values["sizes"].items()}
        if not isinstance(values["run"], str):
            raise ValueError(f"run={values['run']!r}")
        lost = values.get("lost", [])
        if not all(type(round) is int and round > 0 for round in lost):
            raise ValueError(f"lost={lost!r}")
    except (OSError, ArithmeticError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise InputError(
            f"{path}: should hold run and sizes, as fedexp writes it ({error})"
        ) from error
    return Record(values["run"], sizes, bool(values.get("own_data", False)), lost)


def write_record(folder: Path, record: Record) -> None:
    """Write the record; an interrupted write leaves the old file unchanged."""
    folder.mkdir(parents=True, exist_ok=True)
    write_durably(folder / FILE, json.dumps(asdict(record)).encode())
