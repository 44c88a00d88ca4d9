"""The stored runs of HiCS-FL on Fashion-MNIST at the paper's size, and their gains."""

from collections.abc import Iterable, Sequence

import numpy as np
from scipy.signal import savgol_filter

from support.result_pages import stored

RUNS = {run["name"]: run for run in stored("hics_fmnist")["runs"]}
SMALL = {run["name"]: run for run in stored("hics_scale_free")["runs"]}
CELLS = {
    "setting (1)": "setting 1, {}, seed {}",
    "setting (2)": "setting 2, {}, seed {}",
    "setting (3)": "setting 3, {}, seed {}",
    "setting (3), plain SGD": "setting 3, {}, plain SGD, seed {}",
}
SIX = range(6)
ALL, EARLY, LATE = slice(200), slice(100), slice(100, 200)


def first(curve: Iterable[float], target: float) -> int | None:
    """The first round, counted from 1, at or above the target."""
    return next((n for n, value in enumerate(curve, 1) if value >= target), None)


def smoothed(curve: Sequence[float]) -> list[float]:
    """The curve as the paper draws it, without the last rounds, where no window is full."""
    return list(savgol_filter(curve, 13, 3)[:-6])


def accuracy(setting: int, sampler: str, seed: int) -> list[float]:
    curve: list[float] = RUNS[f"setting {setting}, {sampler}, seed {seed}"]["global/accuracy"]
    return curve


def gains(rounds: slice, seeds: Iterable[int], sampler: str = "hics") -> list[float]:
    """Gains in mean accuracy over random sampling in setting (2), one a seed."""
    return [
        float(
            np.mean(accuracy(2, sampler, n)[rounds]) - np.mean(accuracy(2, "weighted", n)[rounds])
        )
        for n in seeds
    ]


def delays(target: float, seeds: Iterable[int], sampler: str = "hics") -> list[int]:
    """Rounds more than random sampling in setting (2); 200 where the target is not reached."""
    reached = [
        [first(accuracy(2, name, seed), target) or 200 for name in (sampler, "weighted")]
        for seed in seeds
    ]
    return [own - random for own, random in reached]


def small(cell: str, sampler: str) -> list[float]:
    """The mean accuracy of all rounds of the small runs, one value a seed."""
    names = [CELLS[cell].format(sampler, seed) for seed in range(3)]
    return [float(np.mean(SMALL[name]["global/accuracy, every second round"])) for name in names]
