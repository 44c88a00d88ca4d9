"""Where one contender's round spends its time."""

import cProfile
import pstats

from rich.console import Console

from benchmark.jobs import CONTENDERS
from benchmark.rounds import fedexp_round


def profile(jobs: dict[str, list[str]], name: str, console: Console) -> None:
    """Print the 25 most expensive functions of the second round of each job."""
    contender = next(each for each in CONTENDERS if each.name == name)
    for job, overrides in jobs.items():
        run = fedexp_round([*overrides, *contender.overrides])
        run(1)
        profiler = cProfile.Profile()
        profiler.runcall(run, 2)
        console.print(f"[bold]{job}[/]: {name}")
        pstats.Stats(profiler).strip_dirs().sort_stats("tottime").print_stats(25)
