"""The result of a step: a file ``STEP.json``."""

import json
import os
from pathlib import Path
from typing import Any


def read(folder: Path, step: str) -> dict[str, Any]:
    """The step's result so far; empty if there is none."""
    path = folder / f"{step}.json"
    return json.loads(path.read_text()) if path.exists() else {}


def write(folder: Path, step: str, found: dict[str, Any]) -> None:
    """Write the step's result; whoever stops the program finds the old or the new one, whole."""
    path = folder / f"{step}.json"
    unfinished = path.with_suffix(".unfinished")
    unfinished.write_text(json.dumps(found, indent=1) + "\n")
    os.replace(unfinished, path)
