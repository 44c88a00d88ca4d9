"""What the server keeps of a federation in the run's folder, to go on after a stop."""

import json
import secrets
from dataclasses import asdict, dataclass, field
from pathlib import Path

from fedexp.state.atomic import write_durably

FILE = "federation.json"


@dataclass(frozen=True)
class Record:
    """The content of ``FILE``.

    Attributes:
        run: the name of the run at the nodes, which keep the states of runs apart.
        sizes: client -> number of its training samples.
    """

    run: str = field(default_factory=lambda: secrets.token_hex(8))
    sizes: dict[int, int] = field(default_factory=dict)


def read_record(folder: Path) -> Record:
    """The record in the run's folder; a new one if there is none."""
    path = folder / FILE
    if not path.is_file():
        return Record()
    values = json.loads(path.read_bytes())
    return Record(values["run"], {int(client): size for client, size in values["sizes"].items()})


def write_record(folder: Path, record: Record) -> None:
    """Write the record, completely or not at all."""
    folder.mkdir(parents=True, exist_ok=True)
    write_durably(folder / FILE, json.dumps(asdict(record)).encode())
