"""Training with checkpoints, up to the last round or an early end."""

import signal
from contextlib import closing, nullcontext

from fedexp.config.schema import Config
from fedexp.errors import InputError, Interrupted
from fedexp.federation import Federation
from fedexp.runtime.interrupts import Interrupts
from fedexp.runtime.limits import Clock
from fedexp.runtime.open_run import OpenRun
from fedexp.state.checkpoint import Checkpoint
from fedexp.state.checkpoints import Checkpoints


def train(
    federation: Federation, config: Config, run: OpenRun, clock: Clock
) -> tuple[int, str | None]:
    """Train all rounds, or the rounds after a checkpoint.

    Args:
        federation: the federation to train.
        config: the run's config.
        run: the run's folder, and the checkpoint to resume from.
        clock: the run's time.

    Returns:
        The last trained round, and why training ended early (None if it ended as planned).

    Raises:
        Interrupted: Ctrl-C in a run with checkpoints; the rounds so far are saved.
        InputError: ``limits.idle_rounds`` is reached; with checkpoints the rounds so far are saved.
    """
    saves, done = config.checkpoint.keep > 0, 0
    with closing(federation.store):
        if run.checkpoint:
            restore(federation, run.checkpoint)
            clock.add(run.checkpoint.seconds)
            done = run.checkpoint.round
        announce = federation.ranks.is_first
        with Interrupts(announce) if saves else nullcontext() as interrupts:
            save_or_stop = _SaveOrStop(federation, config, run, clock, interrupts)
            last = federation.run(config.rounds, done, save_or_stop)
    return last, save_or_stop.stopped


def restore(federation: Federation, checkpoint: Checkpoint) -> None:
    """Restore the checkpoint; every process restores its own clients."""
    checkpoint.restore(
        federation.server,
        federation.measures,
        federation.coordination,
        federation.store,
        federation.module.device,
        federation.placement.local_clients,
    )
    federation.placement.synchronize()


class _SaveOrStop:
    """Called after every round: saves a checkpoint if one is due, and decides whether to stop.

    Without checkpoints (``interrupts`` is None) it saves nothing and stops training only at
    ``limits.idle_rounds``.

    Attributes:
        stopped: why training ended before the last round; None if it has not stopped early.
    """

    def __init__(
        self,
        federation: Federation,
        config: Config,
        run: OpenRun,
        clock: Clock,
        interrupts: Interrupts | None,
    ) -> None:
        self._federation, self._rounds = federation, config.rounds
        self._every = config.checkpoint.every
        self._run = run
        identity = run.identity.content if run.identity else b""
        self._checkpoints = Checkpoints(run.folder, config.checkpoint.keep, identity)
        self._clock, self._interrupts = clock, interrupts
        self._most_idle = config.limits.idle_rounds
        self.stopped: str | None = None

    def __call__(self, round: int) -> bool:
        """Save if a checkpoint is due, and return whether training ends early after this round.

        Raises:
            Interrupted: Ctrl-C.
            InputError: ``limits.idle_rounds`` is reached; with checkpoints the round is saved.
        """
        idle = self._federation.server.idle_rounds
        is_idle = self._most_idle is not None and idle >= self._most_idle
        saves, is_last = self._interrupts is not None, round == self._rounds
        reason = self._reason(self._interrupts) if self._interrupts else None
        is_due = is_last or (self._every and round % self._every == 0)
        if saves and (reason or is_due or is_idle):
            self._save(round)
        if is_idle:
            self._federation.log_pending()
            raise InputError(self._why_idle(round, idle))
        if is_last or not reason:
            return False
        if reason == signal.SIGINT.name:
            raise Interrupted(signal.SIGINT)
        self.stopped = reason
        return True

    def _reason(self, interrupts: Interrupts) -> str | None:
        """The signal or limit for which all ranks stop, if any rank has one; None to continue."""
        received = interrupts.received
        own = received.name if received else self._clock.reason_to_stop()
        return next((each for each in self._federation.ranks.all_gather(own) if each), None)

    def _why_idle(self, round: int, idle: int) -> str:
        saved = f", which is saved in {self._run.folder}" if self._interrupts else ""
        return (
            f"limits.idle_rounds={self._most_idle}: no update was accepted in the last {idle} "
            f"rounds up to round {round}{saved}; use a smaller optimizer.lr, a robust aggregator, "
            "or limits.idle_rounds=null"
        )

    def _save(self, round: int) -> None:
        federation = self._federation
        federation.log_pending()  # a checkpoint contains the records of its rounds
        ranks, store = federation.ranks, federation.store
        self._checkpoints.save(
            round,
            self._clock.seconds,
            federation.server,
            federation.measures,
            federation.coordination,
            ranks.iterate_gathered(store.states()),
            self._run.lines,
            write=ranks.is_first and self._run.has_folder(),
        )
