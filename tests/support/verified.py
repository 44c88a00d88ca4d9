"""Run folders to check, and copies of them that were tampered with."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fedexp.verification.run import Ways


def ways(rounds: int = 2, **others: Any) -> Ways:
    """Check two rounds."""
    return Ways(rounds, os.environ["FEDEXP_CACHE"], **others)


def edit_json(path: Path, change: Callable[[Any], object]) -> None:
    """Change the content of a JSON file."""
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


def edit_rounds(folder: Path, change: Callable[[list[dict[str, Any]]], object]) -> None:
    """Change the rounds in ``metrics.jsonl``."""
    path = folder / "metrics.jsonl"
    rounds = [json.loads(line) for line in path.read_text().splitlines()]
    change(rounds)
    path.write_text("".join(f"{json.dumps(each)}\n" for each in rounds))


def forget_digests(folder: Path) -> None:
    """Remove the digests of the records, as somebody would who edits them with care."""
    edit_json(folder / "summary.json", lambda summary: summary.pop("records"))
