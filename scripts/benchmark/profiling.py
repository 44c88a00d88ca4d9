"""Where one contender's round spends its time."""

import cProfile
import pstats
from collections import Counter
from pathlib import PurePath

from rich.console import Console

from benchmark.jobs import CONTENDERS
from benchmark.rounds import fedexp_round

_PACKAGES = {"torch": "PyTorch's Python code", "lightning": "Lightning", "fedexp": "fedexp"}


def profile(jobs: dict[str, list[str]], name: str, console: Console) -> None:
    """Print shares by package and the 25 most expensive functions of the second round."""
    contender = next(each for each in CONTENDERS if each.name == name)
    for job, overrides in jobs.items():
        run = fedexp_round([*overrides, *contender.overrides])
        run(1)
        profiler = cProfile.Profile()
        profiler.runcall(run, 2)
        console.print(f"[bold]{job}[/]: {name}")
        for package, share in shares(pstats.Stats(profiler)):
            console.print(f"  {share:4.0%} {package}")
        pstats.Stats(profiler).strip_dirs().sort_stats("tottime").print_stats(25)


def shares(stats: pstats.Stats) -> list[tuple[str, float]]:
    """(package, its functions' share of all time), the largest share first."""
    seconds: Counter[str] = Counter()
    for (file, _, _), (_, _, own, *_) in stats.stats.items():  # type: ignore[attr-defined]
        seconds[package_of(file)] += own
    total = sum(seconds.values())
    return [(package, own / total) for package, own in seconds.most_common()]


def package_of(file: str) -> str:
    """The package of a function that is in ``file``, which is a file's name in ``cProfile``."""
    if file == "~":
        return "compiled code"
    known = (_PACKAGES[part] for part in reversed(PurePath(file).parts) if part in _PACKAGES)
    return next(known, "other Python code")
