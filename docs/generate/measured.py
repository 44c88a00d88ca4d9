"""The stored runs on digits: ``docs/measured/<group>/<option>.json``, by ``docs/measure.py``."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from generate.curve import Curve

FOLDER = Path(__file__).parents[1] / "measured"
GLOBAL, PERSONAL = "global/accuracy", "personal/accuracy_local"


@dataclass(frozen=True)
class Runs:
    """The runs of one option, one for each seed.

    Attributes:
        release: version of fedexp that ran them.
        command: what was typed, without the seed.
        seeds: one for each run.
        runs: the runs, as stored.
    """

    release: str
    command: str
    seeds: tuple[int, ...]
    runs: tuple[dict[str, Any], ...]

    def final(self, metric: str) -> tuple[float, ...]:
        """Its value after the last round, for each seed; empty if it was not measured."""
        return tuple(run["final"][metric] for run in self.runs if metric in run["final"])

    def total(self, name: str) -> float:
        """The mean over seeds of ``download_bytes``, ``upload_bytes`` or ``seconds`` of a run."""
        return fmean(run[name] for run in self.runs)

    @property
    def traffic(self) -> float:
        """The bytes in both directions over the whole run: the mean over seeds."""
        return self.total("download_bytes") + self.total("upload_bytes")

    @property
    def rounds(self) -> int:
        """The number of rounds of a run: the last one in which a curve has a point."""
        return max(points[-1][0] for points in self.runs[0]["curves"].values() if points)

    @property
    def metrics(self) -> set[str]:
        """The names of all metrics that the runs logged."""
        return {name for run in self.runs for name in run["metrics"]}

    def curve(self, metric: str) -> Curve:
        """The mean over seeds in each round in which it was measured."""
        curves = [run["curves"].get(metric, []) for run in self.runs]
        return [(points[0][0], fmean(p[1] for p in points)) for points in zip(*curves, strict=True)]


def path(group: str, name: str) -> Path:
    """The file of an option's runs."""
    return FOLDER / group / f"{name}.json"


@cache
def runs(group: str, name: str) -> Runs | str:
    """The stored runs of an option, or the reason why there are none."""
    file = path(group, name)
    if not file.exists():
        return "it has not been run yet"
    stored = json.loads(file.read_text())
    if "not_measured" in stored:
        return str(stored["not_measured"])
    found = stored["runs"]
    seeds = tuple(run["seed"] for run in found)
    return Runs(stored["release"], stored["command"], seeds, tuple(found))


def mean_and_spread(values: Sequence[float]) -> str:
    """Mean and standard deviation over seeds; of one seed the value alone."""
    if not values:
        return ""
    spread = f" ± {stdev(values):.3f}" if len(values) > 1 else ""
    return f"{fmean(values):.3f}{spread}"
