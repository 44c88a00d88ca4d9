"""Saves checkpoints, and ends training before the last round at a limit or a signal."""

import signal

from fedexp.config.schema import Config
from fedexp.errors import InputError, Interrupted
from fedexp.runtime.federation import Federation
from fedexp.runtime.interrupts import Interrupts
from fedexp.runtime.limits import Clock
from fedexp.runtime.open_run import OpenRun
from fedexp.state.checkpoints import Checkpoints


class SaveOrStop:
    """Called after every round: saves a checkpoint if one is due, and decides whether to stop.

    Args:
        federation: the federation that trains.
        config: the run's config.
        run: the run's folder.
        clock: the run's time.
        interrupts: holds back signals until the round is saved; None in a run without checkpoints,
            which saves nothing and stops only at ``limits.idle_rounds``.

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
        federation, ranks = self._federation, self._federation.ranks
        self._checkpoints.save(
            round,
            self._clock.seconds,
            federation.server,
            federation.measures,
            federation.coordination,
            ranks.iterate_gathered(federation.store.states()),
            self._run.lines,
            write=ranks.is_first and self._run.has_folder(),
        )
