"""Short runs to be interrupted, and what is left of them."""

import json
from pathlib import Path
from typing import Any

import fedexp
from fedexp.errors import InputError
from fedexp.state.checkpoints import Checkpoints
from support.federations import timeless

NO_PICTURES = ["tracking.trackers.figures=null", "tracking.trackers.curves=null"]
NO_PICTURES += ["measure.partition=null", "measure.prototypes=null"]
"""Pictures are half of the time of a run of one round."""

SHORT = [
    *["rounds=4", "clients.count=5", "clients.per_round=3", "local.epochs=1", "data.subset=200"],
    *["checkpoint.every=1", "model.hidden=[8]", "measure.angles=null", "measure.partition=null"],
    *["measure.prototypes=null", "measure.personal.every=1", "tracking.progress=false"],
    "tracking.wandb.mode=disabled",
]
"""A run of less than a second, whose last round is measured like any other."""

Outcome = tuple[str, list[dict[str, Any]]]


def run(folder: Path, *overrides: str) -> Outcome:
    """Start or resume a short run in this folder; its outcome."""
    fedexp.run([*SHORT, *overrides, f"hydra.run.dir={folder}", "resume=auto"])
    return outcome(folder)


def outcome(folder: Path) -> Outcome:
    """Digest of the final weights, and each round's numbers but for the time they took."""
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    digest = json.loads((folder / "summary.json").read_text())["weights_digest"]
    return digest, list(map(timeless, lines))


def saved_round(folder: Path) -> int:
    """The round of the newest checkpoint."""
    checkpoint = Checkpoints(folder, 2).latest()
    assert checkpoint is not None
    return checkpoint.round


def refusal(folder: Path, *overrides: str) -> str | None:
    """The line with which a run stops; None if it ends well."""
    try:
        run(folder, *overrides)
    except InputError as error:
        return str(error)
    return None


def contents(folder: Path) -> dict[str, bytes]:
    """Name of each file -> content, but for the lock and the log, which every start writes."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in files
        if path.name not in (".lock", "fedexp.log")
    }
