"""The contract of coordination; the base class is the synchronous round."""

from collections.abc import Callable, Iterable
from typing import Any

from fedexp.config.compatibility.declaration import Declares
from fedexp.contract import Message, Setting, Update
from fedexp.engines.base import Engine
from fedexp.samplers.request import Request, Selected
from fedexp.system.exchange import Exchange
from fedexp.system.round_time import RoundTime
from fedexp.system.system import System

Select = Callable[[Message, Request], Selected]
"""Chooses the clients that get the message."""


class Coordination(Declares):
    """Decides when clients get the global model, and which updates a server step takes.

    The base class is ``coordination=synchronous``: a cohort gets the model, and the server steps
    when all updates of the cohort have arrived. In every subclass, too, a round ends with one
    server step.

    Attributes:
        system: the simulated devices and the clock, after ``setup``.
    """

    system: System

    def check(self, clients_per_round: int, system: System) -> None:
        """Raise InputError if an option of this class does not fit the cohort size or ``system``.

        The check runs before ``setup`` and needs no data.
        """

    def updates_per_step(self, clients_per_round: int) -> int:
        """The number of updates that a server step waits for; by default those of a cohort."""
        return clients_per_round

    def setup(self, setting: Setting, system: System) -> None:
        """Prepare for the run; called once, before the first round."""
        self.system = system

    def updates(self, exchange: Exchange, select: Select, engine: Engine) -> Iterable[Update]:
        """The updates that the next server step takes.

        Args:
            exchange: the traffic of the round, with the message to the clients that start now.
            select: chooses clients.
            engine: trains clients.
        """
        return engine.train(select(exchange.message, Request()).training, exchange.message)

    def advance(self, exchange: Exchange) -> RoundTime | None:
        """Advance the clock to the server step and return the round's time.

        Returns None if the run has no simulated time.
        """
        return self.system.advance(exchange.turns)

    def metrics(self) -> dict[str, float]:
        """Metrics of the last round, for the log: name -> value."""
        return {}

    def state_dict(self) -> dict[str, Any]:
        """The clock and all that a resumed run needs, for a checkpoint."""
        return self.system.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Inverse of ``state_dict``; the tensors in ``state`` are on the run's device."""
        self.system.load_state_dict(state)
