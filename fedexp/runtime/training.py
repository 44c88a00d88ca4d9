"""Training with checkpoints, up to the last round or until something ends it earlier."""

import signal
import time
from collections.abc import Mapping
from contextlib import closing, nullcontext
from pathlib import Path

from fedexp.config.schema import Config
from fedexp.errors import Interrupted
from fedexp.federation import Federation
from fedexp.runtime.choices import Choices
from fedexp.runtime.interrupts import Interrupts
from fedexp.runtime.limits import TimeLimit
from fedexp.state.checkpoint import Checkpoint, Checkpoints


def train(
    federation: Federation,
    config: Config,
    done: Checkpoint | None,
    folder: Path,
    start: float,
    limit: TimeLimit,
    choices: Choices,
) -> tuple[int, str | None, Mapping[str, int | str]]:
    """Train all rounds, or those after a checkpoint.

    Args:
        federation: what is trained.
        config: of the run.
        done: the checkpoint to continue from; None begins with round 1.
        folder: of the run, for checkpoints.
        start: ``time.perf_counter()`` at the start of the run, less the time before ``done``.
        limit: of its time.
        choices: what the config leaves open.

    Returns:
        The last round, why it is not that of the config (None if it is), and what the run chose
        by trials, see ``Checkpoint``.

    Raises:
        Interrupted: Ctrl-C; the rounds so far are saved.
    """
    saves = config.checkpoint.keep > 0
    ranks = federation.ranks
    with closing(federation.engine.resources.store):
        if done:
            _restore(federation, done)
        broadcast, cohort_size = federation.server.broadcast, config.clients.per_round
        chosen = choices.choose(federation.engine, broadcast, cohort_size)
        with Interrupts(announce=ranks.is_first) if saves else nullcontext() as interrupts:
            after_round = _AfterRound(federation, config, folder, start, limit, interrupts, chosen)
            last = federation.run(config.rounds, done.round if done else 0, after_round)
    return last, after_round.stopped, chosen


def _restore(federation: Federation, checkpoint: Checkpoint) -> None:
    """Continue from the checkpoint, in every process with its own clients."""
    resources, placement = federation.engine.resources, federation.placement
    checkpoint.restore(
        federation.server,
        federation.evaluator,
        resources.store,
        resources.fabric.device,
        placement.local_clients,
    )
    placement.synchronize()


class _AfterRound:
    """Called after every round: saves it if that is due, and says whether training ends there.

    Without checkpoints (``interrupts`` is None) nothing is saved and nothing ends training.

    Attributes:
        stopped: why training ended before the last round; None if it did not.
    """

    def __init__(
        self,
        federation: Federation,
        config: Config,
        folder: Path,
        start: float,
        limit: TimeLimit,
        interrupts: Interrupts | None,
        chosen: Mapping[str, int | str],
    ) -> None:
        self._federation, self._rounds = federation, config.rounds
        self._every = config.checkpoint.every
        self._checkpoints = Checkpoints(folder, config.checkpoint.keep)
        self._start, self._limit, self._interrupts = start, limit, interrupts
        self._chosen = chosen
        self.stopped: str | None = None

    def __call__(self, round: int) -> bool:
        """Whether training ends after this round. Raises Interrupted after a Ctrl-C."""
        if self._interrupts is None:
            return False
        reason, is_last = self._reason(self._interrupts), round == self._rounds
        if reason or is_last or (self._every and round % self._every == 0):
            self._save(round)
        if is_last or not reason:
            return False
        if reason == signal.SIGINT.name:
            raise Interrupted(signal.SIGINT)
        self.stopped = reason
        return True

    def _reason(self, interrupts: Interrupts) -> str | None:
        """A signal's name or a limit; the first rank's that has one, at which all ranks end."""
        received = interrupts.received
        own = received.name if received else self._limit.reason_to_stop()
        return next((each for each in self._federation.ranks.all_gather(own) if each), None)

    def _save(self, round: int) -> None:
        federation = self._federation
        federation.log_waiting()  # a checkpoint has the records of its rounds
        ranks, store = federation.ranks, federation.engine.resources.store
        self._checkpoints.save(
            round,
            time.perf_counter() - self._start,
            federation.server,
            federation.evaluator,
            ranks.iterate_gathered(store.states()),
            ranks.is_first,
            self._chosen,
        )
