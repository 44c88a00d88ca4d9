"""The rows of an ablation, which its sweep and its reports share; imports nothing slow.

The sweep writes into its folder which options stand for the absence of a part.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from fedexp.state.atomic import write_atomically

FILE = "ablation.json"
"""The file in a sweep's folder: config group -> the option that stands for its absence."""


def write_plain(folder: Path, plain: Mapping[str, str]) -> None:
    """Write the ablated groups of a sweep and their plain options into its folder."""
    write_atomically(folder / FILE, json.dumps(plain).encode())


def read_plain(folder: Path) -> dict[str, str]:
    """The ablated groups of the sweep in ``folder``; empty if it is no ablation."""
    try:
        found = json.loads((folder / FILE).read_bytes())
        return {str(group): str(option) for group, option in found.items()}
    except (OSError, ValueError, AttributeError):
        return {}


def row_name(removed: Sequence[str], every: Sequence[str]) -> str:
    """The name of a row: ``full method``, ``without head``, or ``baseline (without all)``."""
    if not removed:
        return "full method"
    if len(removed) == len(every) > 1:
        return f"baseline (without {' and '.join(every) if len(every) == 2 else 'all'})"
    return f"without {', '.join(removed)}"
