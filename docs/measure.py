"""Run every option on digits and store the numbers: ``bash scripts/docs.sh --measure``.

Each run is written to ``docs/measured/<group>/<option>.json`` when it ends, so that a stopped
command goes on where it was. Runs of this release with the same command are not repeated. All
options get the first seed before any gets the second. An option whose run takes more than a minute
of processor time has one seed.
"""

import argparse
import json
import os
import re
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from functools import cache
from multiprocessing import get_context
from typing import Any

from generate.measured import FOLDER, path
from generate.options import Option, all_options
from generate.run_plan import overrides, reason_for_none

import fedexp
from fedexp.cli.compose import composed
from fedexp.errors import InputError
from fedexp.runtime.result import RunResult
from fedexp.tracking.summary import config_hash
from fedexp.version import code_version

SEEDS = (0, 1, 2)
LONG = 60.0
"""Processor seconds from which on one seed is enough."""

_QUIET = (
    *("tracking.wandb.mode=disabled", "tracking.progress=false", "checkpoint.keep=0"),
    *("measure.partition=null", "measure.prototypes=null"),  # figures
)
_CURVES = ("global/accuracy", "personal/accuracy_local")


@dataclass(frozen=True)
class Job:
    """One run of one option."""

    option: Option
    seed: int


def main() -> None:
    """Measure what is missing, in as many processes as there are cores."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("options", nargs="*", metavar="GROUP/OPTION", help="only these")
    parser.add_argument("--all", action="store_true", help="repeat what this release has measured")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="processes")
    asked = parser.parse_args()
    chosen = [
        each
        for each in all_options()
        if not reason_for_none(each) and (not asked.options or _name(each) in asked.options)
    ]
    if asked.all:
        for option in chosen:
            path(option.group, option.name).unlink(missing_ok=True)
    jobs = [Job(each, seed) for seed in SEEDS for each in chosen]
    failed = 0
    with ProcessPoolExecutor(asked.jobs, get_context("spawn"), _warm_up) as pool:
        futures = {pool.submit(_measure, job): job for job in jobs}
        for done, future in enumerate(as_completed(futures), start=1):
            job, error = futures[future], future.exception()
            failed += error is not None
            what = f"failed: {error!r}" if error else future.result()
            print(f"{done}/{len(jobs)} {_name(job.option)} seed={job.seed}: {what}", flush=True)
    if failed:
        raise SystemExit(f"{failed} runs failed")


def _warm_up() -> None:
    """Import everything before the first run, so that its seconds are like the others'."""
    with tempfile.TemporaryDirectory() as folder:
        fedexp.run([*_QUIET, "rounds=1", f"hydra.run.dir={folder}/run"])


def _measure(job: Job) -> str:
    """Run the job and store it, unless that is done. Returns what happened."""
    stored = _stored(job.option)
    if "not_measured" in stored:
        return "refused"
    if any(run["seed"] == job.seed for run in stored["runs"]):
        return "is there"
    if any(run["seconds"] > LONG for run in stored["runs"]):
        return "one seed is enough"
    own = overrides(job.option)
    try:
        digest = config_digest(tuple(own))
        if twin := _twin(digest, job.seed):
            _add(job.option, twin)
            return "as another option with the same config"
        run = _run([*own, *_QUIET, f"seed={job.seed}"])
    except InputError as error:
        _write(job.option, {"not_measured": f"fedexp refuses it: {error}"})
        return f"refused: {error}"
    _add(job.option, {"config": digest, "seed": job.seed, **run})
    return f"{run['seconds']:.1f} s"


def _run(overrides: Sequence[str]) -> dict[str, Any]:
    """Run the experiment; its numbers."""
    with tempfile.TemporaryDirectory() as folder:
        started = time.process_time()
        result = fedexp.run([*overrides, f"hydra.run.dir={folder}/run"])
        return _record(time.process_time() - started, result)


@cache
def config_digest(own: tuple[str, ...]) -> str:
    """The same for all command lines that compose to the same config."""
    return config_hash(composed(own).config)[:16]


def _twin(digest: str, seed: int) -> dict[str, Any] | None:
    """A stored run of another option with this config and seed."""
    for file in FOLDER.glob("*/**/*.json"):
        stored = json.loads(file.read_text())
        for run in stored.get("runs", []) if stored["release"] == code_version() else []:
            if (run["config"], run["seed"]) == (digest, seed):
                return dict(run)
    return None


def _add(option: Option, run: dict[str, Any]) -> None:
    """Store a run beside those of the other seeds."""
    others = (each for each in _stored(option)["runs"] if each["seed"] != run["seed"])
    runs = [*others, run]
    _write(option, {"runs": sorted(runs, key=lambda each: each["seed"])})


def _record(seconds: float, result: RunResult) -> dict[str, Any]:
    """The numbers of a run that the pages show."""
    summary, rows = result.summary, [json.loads(line) for line in result.lines.splitlines()]
    total = summary["total"]
    return {
        "seconds": round(seconds, 2),
        "download_bytes": total["cost/download_bytes"],
        "upload_bytes": total["cost/upload_bytes"],
        "final": {n: _rounded(each["final"]) for n, each in summary["metrics"].items()},
        "curves": {
            name: [[row["round"], _rounded(row[name])] for row in rows if name in row]
            for name in _CURVES
        },
        "metrics": sorted({name for row in rows for name in row if "/" in name}),
    }


def _rounded(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.5g}")


def _stored(option: Option) -> dict[str, Any]:
    """What this release has stored for the option, if it was run with the same command."""
    empty = {"release": code_version(), "command": _command(option), "runs": []}
    file = path(option.group, option.name)
    found: dict[str, Any] = json.loads(file.read_text()) if file.exists() else empty
    is_same = all(found.get(key) == empty[key] for key in ("release", "command"))
    return found if is_same else empty


def _command(option: Option) -> str:
    return f"fedexp {' '.join(overrides(option))}"


def _write(option: Option, content: dict[str, Any]) -> None:
    file = path(option.group, option.name)
    file.parent.mkdir(parents=True, exist_ok=True)
    whole = {"release": code_version(), "command": _command(option), **content}
    unfinished = file.with_suffix(".new")
    unfinished.write_text(as_text(whole))
    unfinished.replace(file)


def as_text(content: dict[str, Any]) -> str:
    """JSON with a line for each number or list of numbers that is not nested further."""
    text = json.dumps(content, indent=1)
    return re.sub(r"\[\s+([^\[\]{}]*?)\s+\]", _in_one_line, text) + "\n"


def _in_one_line(found: re.Match[str]) -> str:
    return "[{}]".format(re.sub(r"\s*\n\s*", " ", found[1]))


def _name(option: Option) -> str:
    return f"{option.group}/{option.name}"


if __name__ == "__main__":
    main()
