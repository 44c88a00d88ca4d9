"""Saves checkpoints, and ends training before the last round at a limit or a signal."""

import signal
from dataclasses import dataclass

from fedexp.config.schema import Config
from fedexp.errors import InputError, Interrupted
from fedexp.runtime.federation import Federation
from fedexp.runtime.interrupts import Interrupts
from fedexp.runtime.limits import Clock
from fedexp.runtime.open_run import OpenRun
from fedexp.state.checkpoints import Checkpoints


@dataclass
class SaveOrStop:
    """Called after every round: saves a checkpoint if one is due, and decides whether to stop.

    Attributes:
        federation: the federation that trains.
        config: the run's config.
        run: the run's folder.
        clock: the run's time.
        interrupts: holds back signals until the round is saved; None in a run without checkpoints,
            which saves nothing and stops only at ``limits.idle_rounds``.
        stopped: why training ended before the last round; None if it has not stopped early.
    """

    federation: Federation
    config: Config
    run: OpenRun
    clock: Clock
    interrupts: Interrupts | None
    stopped: str | None = None

    def __call__(self, round: int) -> bool:
        """Save if a checkpoint is due, and return whether training ends early after this round.

        Raises:
            Interrupted: Ctrl-C.
            InputError: ``limits.idle_rounds`` is reached; with checkpoints the round is saved.
        """
        idle, most_idle = self.federation.server.idle_rounds, self.config.limits.idle_rounds
        is_idle = most_idle is not None and idle >= most_idle
        every, is_last = self.config.checkpoint.every, round == self.config.rounds
        is_due = is_last or (every and round % every == 0)
        reason = self._reason(self.interrupts) if self.interrupts else None
        if self.interrupts and (reason or is_due or is_idle):
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
        own = received.name if received else self.clock.reason_to_stop()
        return next((each for each in self.federation.ranks.all_gather(own) if each), None)

    def _why_idle(self, round: int, idle: int) -> str:
        saved = f", which is saved in {self.run.folder}" if self.interrupts else ""
        return (
            f"limits.idle_rounds={self.config.limits.idle_rounds}: no update was accepted in the "
            f"last {idle} rounds up to round {round}{saved}; use a smaller optimizer.lr, a robust "
            "aggregator, or limits.idle_rounds=null"
        )

    def _save(self, round: int) -> None:
        federation, run, ranks = self.federation, self.run, self.federation.ranks
        identity = run.identity.content if run.identity else b""
        Checkpoints(run.folder, self.config.checkpoint.keep, identity).save(
            round,
            self.clock.seconds,
            federation.server,
            federation.measures,
            federation.coordination,
            ranks.iterate_gathered(federation.store.states()),
            run.lines,
            write=ranks.is_first and run.has_folder(),
        )
