"""The identity of a run in W&B: its project, name, group and so on, and where each comes from."""

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedexp.config.schema import Wandb
from fedexp.config.wandb_variables import COMMAND_LINE, DEFAULT, PRESET, VARIABLES
from fedexp.state.atomic import write_atomically
from fedexp.tracking.run_name import LONGEST, run_name
from fedexp.tracking.tracker import RunInfo

FILE = "wandb.json"
"""The file in a run's folder from which the resumed run takes its identity."""

KEPT = ("project", "entity", "group", "job_type", "name", "notes", "tags")
"""The keys of ``tracking.wandb`` that a resumed run keeps."""

_OF_AGENT = ("project", "entity")
"""In a search of W&B, W&B itself takes these from the variables that its agent sets."""

_AGENT = "WANDB_SWEEP_ID"
_KEPT, _FROM_CONFIG, _FROM_SWEEP = "kept from the first start", "from the config", "the sweep"


@dataclass(frozen=True)
class WandbIdentity:
    """Key of ``tracking.wandb`` -> its value for this run, and -> where the value comes from."""

    values: Mapping[str, Any]
    origins: Mapping[str, str]

    def save(self, folder: Path) -> None:
        """Write the values that a resumed run keeps; raises OSError."""
        kept = {key: self.values[key] for key in KEPT}
        write_atomically(folder / FILE, json.dumps(kept).encode())

    def line(self) -> str | None:
        """What won, as ``W&B: project=thesis (WANDB_PROJECT), ...``; None if nothing was chosen."""
        if all(origin in _MADE for origin in self.origins.values()):
            return None
        shown = (f"{key}={value} ({self._won(key)})" for key, value in self._shown())
        return f"W&B: {', '.join(shown)}"

    def _shown(self) -> Iterator[tuple[str, Any]]:
        for key, value in self.values.items():
            is_chosen = self.origins[key] not in _MADE and value not in (None, [])
            if key in ("mode", "project", "name") or is_chosen:
                yield key, value

    def _won(self, key: str) -> str:
        """The origin of a value, and the variable that is ignored."""
        origin, variable = self.origins[key], VARIABLES[key]
        is_ignored = origin in (COMMAND_LINE, PRESET, _KEPT) and os.environ.get(variable)
        return f"{origin}, not {variable}" if is_ignored else origin


_MADE = (DEFAULT, _FROM_CONFIG, _FROM_SWEEP)
"""The origins of values that nobody chose."""


def identity_of(run: RunInfo, settings: Wandb) -> WandbIdentity:
    """The identity of a run.

    The order is: the command line, for a resumed run the identity that the run had, then the other
    origins of ``settings``. A name from the variable ``WANDB_NAME`` is the same for all jobs of a
    sweep; there it comes before the name that ``run_name`` makes.
    """
    values = {key: getattr(settings, key) for key in ("mode", *KEPT, "dir")}
    origins = {key: run.origins.get(key, DEFAULT) for key in values}
    if values["name"] is None:
        values["name"], origins["name"] = run_name(run), _FROM_CONFIG
    elif origins["name"] == VARIABLES["name"] and (run.sweep or is_of_agent()):
        values["name"] = "-".join(filter(None, (values["name"], run_name(run))))[:LONGEST]
    if values["group"] is None and run.sweep:
        values["group"], origins["group"] = run.sweep, _FROM_SWEEP
    for key, value in _read(run.folder).items() if run.resumed else ():
        if origins[key] != COMMAND_LINE:
            values[key], origins[key] = value, _KEPT
    for key in _OF_AGENT if is_of_agent() else ():
        values[key] = os.environ.get(VARIABLES[key]) or values[key]
        origins[key] = VARIABLES[key]
    return WandbIdentity(values, origins)


def is_of_agent() -> bool:
    """Whether an agent of a search of W&B, which chooses the id, started this process."""
    return bool(os.environ.get(_AGENT))


def ignored_id(run: RunInfo, settings: Wandb, origin: str) -> str | None:
    """A line that says why ``tracking.wandb.id`` is not the run's id; None if it is, or is null."""
    if settings.id is None or settings.id == run.run_id:
        return None
    if run.sweep:
        return (
            f"W&B: id={settings.id} ({origin}) is ignored in a sweep, whose jobs would become one "
            "W&B run"
        )
    return f"W&B: id={settings.id} ({origin}) is ignored; the resumed run keeps its id {run.run_id}"


def _read(folder: Path) -> dict[str, Any]:
    """The saved identity; empty if there is none."""
    found: Any = {}
    with suppress(OSError, ValueError):
        found = json.loads((folder / FILE).read_bytes())
    return {key: found[key] for key in KEPT if key in found} if isinstance(found, dict) else {}
