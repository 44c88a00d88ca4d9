"""The app that all nodes and the server run: one checked config, in one file."""

import hashlib
import json
from dataclasses import dataclass, field
from functools import cached_property
from importlib.metadata import version
from pathlib import Path

from fedexp.config.schema import Config, validate
from fedexp.errors import InputError

FILE = "app.json"
"""Name of the file with the app, in the app's module folder."""


@dataclass(frozen=True)
class App:
    """A config, and the origin of the clients' data.

    Attributes:
        config: the checked config.
        own_data: whether each node reads its own dataset. If not, all nodes have the whole dataset,
            and each takes the samples of one client of the configured partition.
        choices: config group -> chosen option; saved with the run.
        overrides: the overrides on the command line; saved with the run.
        code: path of a file with the user's own code -> its digest; see ``own_code``.
    """

    config: Config
    own_data: bool
    choices: dict[str, str | None]
    overrides: list[str]
    code: dict[str, str] = field(default_factory=dict)

    @cached_property
    def version(self) -> str:
        """A hash of the app and fedexp's version; equal at the server and at all nodes."""
        content = f"{version('fedexp')} {self.content}"
        return hashlib.sha256(content.encode()).hexdigest()[:16]

    @property
    def content(self) -> str:
        """The app as JSON text, for the file ``FILE``."""
        values = vars(self) | {"config": self.config.model_dump(mode="json")}
        kept = {
            name: values[name] for name in ("config", "own_data", "choices", "overrides", "code")
        }
        return json.dumps(kept, indent=1) + "\n"  # measures keep their order


def read_app(folder: Path) -> App:
    """Read the app from the file ``FILE`` in its module folder. Raises InputError."""
    path = folder / FILE
    try:
        values = json.loads(path.read_bytes())
        return App(**values | {"config": validate(values["config"])})
    except InputError as error:
        raise InputError(f"{path}: {error}") from error
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise InputError(f"{path}: should be an app that fedexp wrote ({error})") from error
