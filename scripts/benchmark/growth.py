"""How the time of a round and the memory grow with the population, and with the cohort."""

import statistics
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmark.process import in_own_process, peak_mib
from benchmark.rounds import fedexp_round, seconds_of

POPULATIONS = [10, 100, 1000, 10000]
SIZES = [(count, 10) for count in POPULATIONS]
SIZES += [(POPULATIONS[-1], cohort) for cohort in POPULATIONS[1:]]
"""(population, cohort)."""

# 18,000 points, so that each of 10,000 clients has one or two and takes one step.
TINY = ["data=spiral", "partition=iid", "model.hidden=[16]", "model.feature_dim=8"]
TINY += ["local.epochs=1", "local.batch_size=2000"]


def grow(console: Console) -> list[dict[str, Any]]:
    """Print one table; returns its rows."""
    rows = []
    table = Table("population", "cohort", "engine", "seconds a round", "peak MiB")
    for engine in ("serial", "vectorized"):
        for count, cohort in SIZES:
            seconds, mebibytes = in_own_process(measure, engine, count, cohort)
            table.add_row(str(count), str(cohort), engine, f"{seconds:.4f}", f"{mebibytes:.0f}")
            row = {"population": count, "cohort": cohort, "engine": engine}
            rows.append(row | {"seconds": seconds, "peak_mib": mebibytes})
    console.print(table)
    return rows


def measure(engine: str, count: int, cohort: int) -> tuple[float, float]:
    """Seconds of a round, and the peak of this process's memory in MiB."""
    clients = [f"clients.count={count}", f"clients.per_round={cohort}", f"engine={engine}"]
    run = fedexp_round([*TINY, *clients])
    seconds = [seconds_of(run, round) for round in range(1, 8)]
    return statistics.median(seconds[2:]), peak_mib()
