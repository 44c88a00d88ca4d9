"""Simulated time, and the simulated time until the global model reaches given accuracies."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from fedexp.measures.global_model import Accuracy
from fedexp.measures.measure import AfterRound, Better, Measure, Measured, Outline
from fedexp.system.round_time import RoundTime


class Times:
    """Computes the metrics of simulated time, round by round.

    Args:
        targets: accuracies; the time until the global model reaches each of them is measured.

    Attributes:
        reached: ``clock/time_to/<target>`` -> seconds, for each target that was reached.
    """

    def __init__(self, targets: Sequence[float]) -> None:
        self.targets = targets
        self.reached: dict[str, float] = {}

    def after(self, time: RoundTime, accuracy: float | None) -> dict[str, float]:
        """Record the targets that this round reached, and return the metrics of time.

        The metrics are ``clock/seconds``, ``clock/round_s``, ``clock/idle_share`` if it is known,
        and ``clock/time_to/<target>`` of every target reached so far.

        Args:
            time: the simulated time of the round.
            accuracy: ``global/accuracy`` after the round; None if it was not measured.
        """
        for target in self.targets:
            if accuracy is not None and accuracy >= target:
                self.reached.setdefault(_name(target), time.end)
        metrics = {"clock/seconds": time.end, "clock/round_s": time.seconds}
        if time.idle_share is not None:
            metrics["clock/idle_share"] = time.idle_share
        return metrics | self.reached


class Clock(Measure):
    """The simulated time of the round and of the run, if clients have simulated devices.

    ``clock/seconds`` is the time since the start of the first round. ``clock/round_s`` is the
    duration of the round. ``clock/idle_share`` is the share of the round that a client spends
    waiting for the slowest client, as a mean over the clients whose updates arrived. If rounds have
    a deadline, ``clock/late`` is the number of clients that missed it. If the server invites more
    clients than it needs, ``clock/surplus`` is the number of clients that finished after the
    server had enough updates.
    ``clock/time_to/<target>`` is the value of ``clock/seconds`` in the first measured round in
    which ``global/accuracy`` is at least the target. Before that round the metric is absent.

    Args:
        targets: accuracies; the time until the global model reaches each of them is measured.
    """

    directions = MappingProxyType({"clock/*": "lower"})  # late and surplus updates are wasted

    def __init__(self, targets: list[Accuracy]) -> None:
        self.targets, self._times = targets, Times(targets)

    def check(self, outline: Outline) -> None:
        """Make the times to the target accuracies headlines (metrics for comparing runs)."""
        self.idle = "" if outline.simulates_time else "without simulated devices (system)"
        lower: Better = "lower"
        targets = self.targets if outline.simulates_time else []
        self.headlines: Mapping[str, Better] = dict.fromkeys(map(_name, targets), lower)

    def __call__(self, after: AfterRound) -> Measured:
        """The metrics ``clock/*`` after this round; nothing without simulated time."""
        time = after.exchange.time
        if time is None:
            return Measured()
        metrics = self._times.after(time, after.found.metrics.get("global/accuracy"))
        return Measured(metrics | self._left_out(after))

    def _left_out(self, after: AfterRound) -> dict[str, float]:
        """``clock/late`` and ``clock/surplus``, each only if the settings allow such clients."""
        system, turns = after.resources.system, after.exchange.turns
        can_occur = {"late": system.deadline is not None, "surplus": system.invited > system.needed}
        return {
            f"clock/{outcome}": sum(turn.outcome == outcome for turn in turns)
            for outcome, can in can_occur.items()
            if can
        }

    def state_dict(self) -> dict[str, Any]:
        """``clock/time_to/<target>`` -> seconds, for each target that was reached."""
        return dict(self._times.reached)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Inverse of ``state_dict``."""
        self._times.reached = dict(state)


def _name(target: float) -> str:
    return f"clock/time_to/{target:g}"
