"""What a config leaves open and a run chooses by trials: the engine and the number of threads."""

import logging
import os
from collections.abc import Callable, Mapping

import torch

from fedexp.config.schema import Engine as EngineConfig
from fedexp.core.messages import Message
from fedexp.distributed.free_cores import FreeCores
from fedexp.distributed.ranks import Ranks
from fedexp.engines.base import Engine
from fedexp.engines.threads import fewest_worthwhile, seconds_by_threads
from fedexp.state.checkpoint import Checkpoint

LOGGER = logging.getLogger(__name__)

Broadcast = Callable[[int], Message]
"""Round -> its message."""


class Choices:
    """Chooses by trials, or as before if the run is resumed.

    With ``engine.threads=auto`` PyTorch's number of threads stays as it is on a GPU and if
    OMP_NUM_THREADS is in the environment, and is what it was if the run is resumed with as many
    processes.

    Args:
        config: of the engine.
        ranks: the processes, all of which must call each method.
        done: what the run is resumed from.
        log: whether what trials have shown is logged.
    """

    def __init__(
        self, config: EngineConfig, ranks: Ranks, done: Checkpoint | None, log: bool
    ) -> None:
        self._config, self._ranks, self._log = config, ranks, log
        self._before: Mapping[str, int | str] = done.chosen if done else {}
        self._resumed = done is not None
        self._most_threads: int | None = None

    def limit_threads(self, device: torch.device, free_cores: FreeCores) -> None:
        """Set the number of threads if it is known, else find its upper bound.

        To be called before the run starts other processes, which would count as another's load.

        Args:
            device: that clients are trained on.
            free_cores: counts the cores that are free.
        """
        if self._config.threads != "auto":
            torch.set_num_threads(self._config.threads)
        elif device.type != "cpu":
            return
        elif self._resumed:
            if self._before.get("processes") == self._ranks.size:
                torch.set_num_threads(int(self._before["threads"]))
        elif not any(self._ranks.all_gather("OMP_NUM_THREADS" in os.environ)):
            own = min(torch.get_num_threads(), free_cores(self._ranks))
            self._most_threads = min(self._ranks.all_gather(own))
            torch.set_num_threads(self._most_threads)

    def choose(
        self, engine: Engine, broadcast: Broadcast, cohort_size: int
    ) -> dict[str, int | str]:
        """Choose what is open; returns name -> choice, which a checkpoint keeps.

        Args:
            engine: of the run.
            broadcast: the server's.
            cohort_size: clients that take part in a round.
        """
        if "engine" in self._before:
            engine.use(str(self._before["engine"]))
        else:
            self._say(engine.choose(self._ranks, broadcast, cohort_size))
        self._say(self._choose_threads(engine, broadcast))
        chosen = {"engine": engine.chosen} if engine.chosen else {}
        return {**chosen, "threads": torch.get_num_threads(), "processes": self._ranks.size}

    def _choose_threads(self, engine: Engine, broadcast: Broadcast) -> str | None:
        """Set the number that a trial shows to be best; None if it is known already."""
        most, seconds = self._most_threads, dict[int, float]()
        if most is None:
            return None
        if most > 1 and not self._config.compile:  # compiled code has a fixed number
            each = self._ranks.all_gather(seconds_by_threads(engine, broadcast(1), most))
            seconds = {count: max(of_rank[count] for of_rank in each) for count in each[0]}
            torch.set_num_threads(fewest_worthwhile(seconds))
        return _threads_line(torch.get_num_threads(), most, seconds)

    def _say(self, line: str | None) -> None:
        if line and self._log:
            LOGGER.info("%s", line)


def _threads_line(count: int, most: int, seconds: Mapping[int, float]) -> str:
    line = f"engine.threads=auto: {count} of {most} free"
    if not seconds:
        return line
    took = ", ".join(f"{1000 * each:.1f} ms with {n}" for n, each in seconds.items())
    return f"{line}; a few steps took {took}"
