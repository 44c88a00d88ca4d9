"""The file ``data.json`` of a run: facts about the data that its trained model needs."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from pydantic import TypeAdapter

from fedexp.core.description import Description
from fedexp.data.dataset import Describer
from fedexp.data.preparations.preparation import Preparation, from_node
from fedexp.errors import InputError
from fedexp.state.atomic import write_durably
from fedexp.state.run_folder import DATA


@dataclass
class Described(Describer):
    """A dataset whose description is known, but not its samples."""

    description: Description

    def describe(self) -> Description:
        """The ``description`` that the constructor got."""
        return self.description


def write_description(folder: Path, about: Description, preparation: Preparation) -> None:
    """Write ``data.json`` into a run's folder."""
    content = {"description": asdict(about), "preparation": preparation.node}
    write_durably(folder / DATA, json.dumps(content, indent=2).encode())


def read_description(folder: Path) -> tuple[Description, Preparation]:
    """Read the ``data.json`` in a run's folder.

    Raises:
        InputError: there is no such file, or it is damaged.
    """
    path = folder / DATA
    try:
        content = json.loads(path.read_bytes())
        about = TypeAdapter(Description).validate_python(content["description"])
        return about, from_node(content["preparation"])
    except FileNotFoundError as error:
        raise InputError(
            f"{folder}: has no {DATA}; the run is of an older version of fedexp, which did "
            "not store what its model needs to know of the data"
        ) from error
    except (OSError, ValueError, KeyError, TypeError, RecursionError, InputError) as error:
        raise InputError(f"{path}: cannot be read ({' '.join(str(error).split())})") from error
