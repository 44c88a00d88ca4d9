"""``engine.threads`` of a run: how many threads each of its processes computes with on the CPU."""

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


class Threads:
    """Sets PyTorch's number of threads, after a trial if the config leaves it open.

    With ``engine.threads=auto`` it stays as PyTorch has it on a GPU and if OMP_NUM_THREADS is in
    the environment, and is what it was if the run is resumed with as many processes.

    Args:
        config: of the engine.
        log: whether ``announce`` logs.
    """

    def __init__(self, config: EngineConfig, log: bool) -> None:
        self._config, self._log = config, log
        self._free_cores = FreeCores()  # counts from now on
        self._most: int | None = None

    def prepare(self, ranks: Ranks, device: torch.device, done: Checkpoint | None) -> None:
        """Set the number if it is known, else find its upper bound; all ranks must call it.

        To be called before the run starts other processes, which would count as another's load.

        Args:
            ranks: the processes.
            device: that clients are trained on.
            done: what the run is resumed from.
        """
        if self._config.threads != "auto":
            torch.set_num_threads(self._config.threads)
        elif device.type != "cpu":
            return
        elif done is not None:
            if done.chosen.get("processes") == ranks.size:
                torch.set_num_threads(int(done.chosen["threads"]))
        elif not any(ranks.all_gather("OMP_NUM_THREADS" in os.environ)):
            own = min(torch.get_num_threads(), self._free_cores(ranks))
            self._most = min(ranks.all_gather(own))
            torch.set_num_threads(self._most)

    def choose(self, engine: Engine, ranks: Ranks, broadcast: Callable[[int], Message]) -> None:
        """Set the number that a trial shows to be best, if it is not known yet.

        Args:
            engine: of the run.
            ranks: the processes, all of which must call it.
            broadcast: round -> its message.
        """
        if self._most is None:
            return
        seconds: Mapping[int, float] = {}
        if self._most > 1 and not self._config.compile:  # compiled code has a fixed number
            each = ranks.all_gather(seconds_by_threads(engine, broadcast(1), self._most))
            seconds = {count: max(of_rank[count] for of_rank in each) for count in each[0]}
            torch.set_num_threads(fewest_worthwhile(seconds))
        self.announce(_line(torch.get_num_threads(), self._most, seconds))

    def announce(self, line: str) -> None:
        """Log what a trial has shown."""
        if self._log:
            LOGGER.info("%s", line)

    def chosen(self, ranks: Ranks) -> dict[str, int | str]:
        """What a checkpoint keeps of it."""
        return {"threads": torch.get_num_threads(), "processes": ranks.size}


def _line(count: int, most: int, seconds: Mapping[int, float]) -> str:
    line = f"engine.threads=auto: {count} of {most} free"
    if not seconds:
        return line
    took = ", ".join(f"{1000 * each:.1f} ms with {n}" for n, each in seconds.items())
    return f"{line}; a few steps took {took}"
