"""How many cores other programs leave free."""

import os
import socket
import time
from dataclasses import dataclass
from pathlib import Path

from fedexp.distributed.ranks import Ranks

_STAT = Path("/proc/stat")
_SHORTEST = 0.2
"""Seconds to measure at least, as Linux counts a core's time in steps of 0.01."""

_IDLE = (3, 4)
"""Columns of a CPU's line in /proc/stat: idle, and waiting for a disk."""

_COUNTED = 8
"""The columns after these count time of virtual machines again."""


class FreeCores:
    """Counts the cores that other programs leave free, by their load since construction.

    Counted are the cores that this process may use: its affinity, less what a container's limit
    takes away. Where there is no /proc/stat (not Linux), other programs' load is unknown and taken
    as none.
    """

    def __init__(self) -> None:
        self._start = _load()

    def __call__(self, ranks: Ranks) -> int:
        """The free cores of this rank, at least one; all ranks must call it.

        Ranks that may use the same cores of a machine get equal parts of those that are free.
        """
        import joblib  # knows the limits of containers; slow to import

        time.sleep(max(0.0, self._start.time + _SHORTEST - time.perf_counter()))
        load = _load()
        own = _Share(socket.gethostname(), load.cores, load.own - self._start.own)
        sharing = [
            each
            for each in ranks.all_gather(own)
            if (each.host, each.cores) == (own.host, own.cores)
        ]
        busy = load.all - self._start.all - sum(each.seconds for each in sharing)
        others = max(0.0, busy / (load.time - self._start.time))
        free = min(round(len(load.cores) - others), int(joblib.cpu_count()))
        return max(1, free // len(sharing))


@dataclass(frozen=True)
class _Load:
    """At one time, in seconds: how long these cores have been busy, how long for this process."""

    time: float
    cores: frozenset[int]
    all: float
    own: float


@dataclass(frozen=True)
class _Share:
    """Of one rank: where it runs, and its seconds on these cores."""

    host: str
    cores: frozenset[int]
    seconds: float


def _load() -> _Load:
    cores = _allowed_cores()
    return _Load(time.perf_counter(), cores, _busy_seconds(cores), time.process_time())


def _allowed_cores() -> frozenset[int]:
    if hasattr(os, "sched_getaffinity"):
        return frozenset(os.sched_getaffinity(0))
    return frozenset(range(os.cpu_count() or 1))


def _busy_seconds(cores: frozenset[int]) -> float:
    """Seconds that these cores have been busy since the machine started; 0 if unknown."""
    try:
        lines = _STAT.read_text().splitlines()
    except OSError:
        return 0.0
    wanted = {f"cpu{core}" for core in cores}
    ticks = 0
    for line in lines:
        name, *columns = line.split()
        if name in wanted:
            ticks += sum(
                int(each) for place, each in enumerate(columns[:_COUNTED]) if place not in _IDLE
            )
    return ticks / os.sysconf("SC_CLK_TCK")
