"""Two ranks, a resumed run, deterministic, bf16 and compiled: each against the plain run."""

from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from digests import SMALL

import fedexp
from benchmark.gpu.place import COMPILED, NO_COMPILER, Place

METHOD = ["algorithm=fednh", "rounds=3", "model.hidden=[32]"]


class Numbers(NamedTuple):
    """What a run computed: the digest of its weights, and the last round's training loss."""

    digest: str
    loss: float


TOLERANCES = {"two_ranks": 1e-4, "bf16": 0.1, "compile": 1e-3}
"""How far the loss may be off; the others must have the same bits."""


def check(place: Place, before: dict[str, Any], name: str) -> Iterator[dict[str, Any]]:
    """Run the experiment in two ways, and compare them."""
    options = _options(place, name)
    if place.lacks_compiler(options):
        yield NO_COMPILER
        return
    if name == "resume":
        one, other = _run(place), _run_with_a_break(place)
    elif name == "deterministic":
        one, other = (_run(place, *options) for _ in range(2))
    else:
        one, other = _run(place), _run(place, *options)
    tolerance = TOLERANCES.get(name, 0.0)
    near = abs(one.loss - other.loss) <= tolerance * max(1.0, abs(one.loss))
    ok = near if tolerance else one.digest == other.digest
    yield {"ok": ok, "runs": [one._asdict(), other._asdict()], "tolerance": tolerance}


def _options(place: Place, name: str) -> list[str]:
    shared = ["engine.devices=1", "engine.processes_per_device=2"]  # both ranks use the one GPU
    return {
        "two_ranks": shared if place.device == "cuda" else ["engine.devices=2"],
        "resume": [],
        "deterministic": ["engine.deterministic=true"],
        "bf16": ["engine.precision=bf16-mixed"],
        "compile": [COMPILED],
    }[name]


def _run(place: Place, *overrides: str) -> Numbers:
    with TemporaryDirectory() as folder:
        return _run_in(Path(folder), place, *overrides)


def _run_with_a_break(place: Place) -> Numbers:
    with TemporaryDirectory() as folder:
        _run_in(Path(folder), place, "checkpoint.every=1", "rounds=1")
        return _run_in(Path(folder), place, "checkpoint.every=1", "resume=auto")


def _run_in(folder: Path, place: Place, *overrides: str) -> Numbers:
    words = [*SMALL, *METHOD, *place.on_device, *overrides, f"hydra.run.dir={folder}/run"]
    result = fedexp.run(words)
    return Numbers(result.summary["weights_digest"], float(result.metrics["train/loss"].iloc[-1]))
