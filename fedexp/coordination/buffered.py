"""Asynchronous federated learning with a buffer of updates (FedBuff), or without one (FedAsync)."""

from collections.abc import Iterator
from itertools import count
from typing import Any, Literal

from pydantic import NonNegativeFloat, NonNegativeInt, PositiveInt

from fedexp.config.compatibility.traits import (
    ASYNCHRONOUS,
    CHOOSES_BY_DEVICE,
    DRAWS_REPEATEDLY,
    EXPECTS_CURRENT,
    MIXES_LATE,
    MOVES_START,
    SENDS_KEPT,
    SENDS_OTHER,
    SEVERAL_PROCESSES,
    SHORTENS_STEPS,
    SIMULATED_TIME,
)
from fedexp.contract import Setting, Update
from fedexp.coordination.base import Coordination, Select
from fedexp.coordination.flights import Departure, Flight, Flights
from fedexp.engines.base import Engine
from fedexp.errors import InputError
from fedexp.samplers.request import Request
from fedexp.system.exchange import Exchange
from fedexp.system.round_time import RoundTime
from fedexp.system.system import System

_MORE_THAN_A_STEP = dict.fromkeys(
    (MOVES_START, SENDS_KEPT, SENDS_OTHER),
    "coordination=buffered: adds the difference between the sent and the received weights to the "
    "current model; this {other} may send weights that are not the received ones plus a new step; "
    "use coordination.step_from=current",
)
"""``discourages`` where a late update counts as w_k - w^tau, a new step from received weights."""


class Buffered(Coordination):
    """K clients are in flight; the server steps when M updates are in its buffer.

    This is FedBuff (Nguyen et al., AISTATS 2022). At each instant of simulated time, first the
    updates of the turns that have ended arrive. When M updates are in the buffer, the server steps
    at once; further updates of this instant go into the next buffer. Then new clients get the
    current model until K clients are in flight again. A client that is in flight, or has an update
    in the buffer, is not chosen. So a buffer has at most one update of each client. If too few
    other clients are left, fewer than K clients are in flight. If no client is in flight any more,
    the server waits for one to become available. If that never happens, it steps with fewer than M
    updates.

    A client that starts from the global weights w^tau sends its trained weights w_k. If they arrive
    when the global weights are w^t, they are replaced by $w^t + s (w_k - w^tau)$. The weight s
    depends on the staleness $t - tau$. So with ``aggregator=uniform`` the server's step is
    $(1/M) sum_k s_k (w_k - w^tau_k)$: FedBuff with the server's learning rate 1. With
    ``aggregator=momentum``, ``aggregator.lr`` is the server's learning rate; the momentum may be 0.
    The released code takes the sum in place of the mean, and divides s by the s of a typical
    staleness. Both only scale the learning rate. The paper's text was not compared.

    An update that is not stale stays as it is. With equally fast clients and $M = K$ the run equals
    ``coordination=synchronous`` to the bit.

    FedAsync (Xie et al., 2019) steps with every update (M = 1) and mixes models. For this,
    ``step_from=current`` replaces the update by $w^t + s (w_k - w^t)$. The aggregator's learning
    rate is then alpha. The released code has the same formulas for s, and an update that is not
    stale has $s = 1$ there, too. Its alpha is 0.9 by default and 0.8 in its example, and is halved
    once during the run; here the learning rate is constant. Its clients are pulled to the model
    that they received; ``regularizer=proximal`` adds this. It names no values of ``exponent``,
    ``grace`` and ``slope``: its example has constant weights. The presets 0.5, 4 and 10 are cited
    from the paper, whose text was not at hand; 0.6, 6 and 10 are found elsewhere.

    Only the parameters are changed in this way. Buffers and the extras of parts stay as the client
    sent them. So a part with a server half must declare that it accepts stale updates. An update
    that the server refuses counts as one of the M updates.

    The simulator trains a client before the server's next step, and keeps the update until its time
    of arrival. So a client's memory and personal model change before the update arrives. The number
    of samples of a turn is known before its training. It gives the earliest time of arrival. All
    clients that have started are trained together as soon as one of their updates could be the next
    to arrive, at the latest at the server's step.

    Args:
        buffer: M, the number of updates that a server step takes; at most K.
        staleness: the formula of s. With ``polynomial`` s is (1 + t - tau)^-``exponent``. With
            ``hinge`` s is 1 if t - tau is at most ``grace``, and otherwise
            1 / (``slope`` (t - tau - ``grace``) + 1). With ``constant`` s is 1.
        exponent: the exponent in ``polynomial``.
        grace: the staleness up to which ``hinge`` gives the weight 1.
        slope: how fast the weight of ``hinge`` falls after ``grace``.
        step_from: the weights from which a stale client's step counts: the ``received`` ones, w^tau
            (FedBuff), or the ``current`` ones, w^t (FedAsync).
    """

    unread_if = {
        "exponent": {"staleness": ("hinge", "constant")},
        "grace": {"staleness": ("polynomial", "constant")},
        "slope": {"staleness": ("polynomial", "constant")},
    }

    needs = {
        SIMULATED_TIME: "coordination=buffered: needs simulated time, to know which update arrives "
        "first; choose devices, such as system=phones"
    }
    forbids = {
        SEVERAL_PROCESSES: "{other}: coordination=buffered trains in one process; should be 1",
        EXPECTS_CURRENT: "coordination=buffered: the server half of this {other} may need updates "
        "that start from the current global model; take another {other} or "
        "coordination=synchronous",
        DRAWS_REPEATEDLY: "coordination=buffered: {other} can draw a client several times at once; "
        "use sampler=random",
    }

    def __init__(
        self,
        buffer: PositiveInt,
        staleness: Literal["polynomial", "hinge", "constant"],
        exponent: NonNegativeFloat,
        grace: NonNegativeInt,
        slope: NonNegativeFloat,
        step_from: Literal["received", "current"],
    ) -> None:
        self.buffer, self.staleness, self.step_from = buffer, staleness, step_from
        self.exponent, self.grace, self.slope = exponent, grace, slope
        shortens = {SHORTENS_STEPS} if staleness != "constant" else set()
        mixes = {MIXES_LATE} if step_from == "current" else set()
        self.traits = frozenset({ASYNCHRONOUS, CHOOSES_BY_DEVICE, *shortens, *mixes})
        if step_from == "received":
            self.discourages = _MORE_THAN_A_STEP
        self.flights = Flights()
        self._departed: list[Departure] = []
        self._landed: list[Flight] = []
        self._staleness: list[int] = []
        self._start = 0.0

    def check(self, clients_per_round: int, system: System) -> None:
        """Raise InputError if M is larger than the cohort size K, or if rounds have a deadline."""
        if system.limits_turns:
            raise InputError(
                "coordination=buffered: the server waits for no client; system.deadline and "
                "system.invite should be null"
            )
        if self.buffer > clients_per_round:
            raise InputError(
                f"coordination.buffer={self.buffer}: must be at most clients.per_round="
                f"{clients_per_round}, the number of clients in flight"
            )

    def updates_per_step(self, clients_per_round: int) -> int:
        """M, the size of the buffer."""
        return self.buffer

    def setup(self, setting: Setting, system: System) -> None:
        """Store how many clients are in flight together, and which weights are parameters."""
        super().setup(setting, system)
        self.places = setting.clients_per_round
        self.parameters = frozenset(setting.model.parameters)

    def weight(self, staleness: int) -> float:
        """The weight s (at most 1) of an update that is this many server steps old."""
        if self.staleness == "polynomial":
            return float((1 + staleness) ** -self.exponent)
        if self.staleness == "hinge":
            return 1 / (self.slope * max(staleness - self.grace, 0) + 1)
        return 1.0

    def updates(self, exchange: Exchange, select: Select, engine: Engine) -> Iterator[Update]:
        """Move through simulated time until the buffer's M updates have arrived; yield them.

        When the last update has been yielded, the clock shows the time of the server step.
        """
        self._start, self._landed, self._staleness = self.system.now, [], []
        missing = self.buffer
        for selection in count():
            for flight in self.flights.land(self.system.now, missing):
                self._landed.append(flight)
                if flight.update is not None:
                    missing -= 1
                    yield self._arrived(flight, flight.update, exchange)
            if not missing:
                break
            self._depart(exchange, selection, select, engine)
            if any(each.earliest_end <= self.flights.next_end for each in self._departed):
                self._train(exchange, engine)
            if not len(self.flights):
                break
            # A turn ends before its planned time if a part trains on fewer samples than its
            # ``trained_samples`` says.
            self.system.now = max(self.system.now, self.flights.next_end)
        self._train(exchange, engine)

    def advance(self, exchange: Exchange) -> RoundTime:
        """The time since the last server step; ``updates`` has already advanced the clock.

        The idle share is None, because clients never wait for others.
        """
        arrived = [flight for flight in self._landed if flight.update is not None]
        seconds = {flight.client: flight.end - flight.start for flight in arrived}
        return RoundTime(self.system.now - self._start, self.system.now, None, seconds)

    def metrics(self) -> dict[str, float]:
        """The mean staleness of the updates that arrived, and the number of clients at work."""
        metrics = {"coordination/in_flight": float(self.flights.working(self.system.now))}
        if self._staleness:
            mean = sum(self._staleness) / len(self._staleness)
            metrics["coordination/staleness"] = mean
        return metrics

    def state_dict(self) -> dict[str, Any]:
        """The clock and the flights (clients whose update has not arrived), for a checkpoint."""
        return super().state_dict() | self.flights.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Inverse of ``state_dict``."""
        super().load_state_dict(state)
        self.flights.load_state_dict(state)

    def _depart(self, exchange: Exchange, selection: int, select: Select, engine: Engine) -> None:
        """Send the current model to new clients until K clients are in flight, if possible."""
        message = exchange.message
        flying = self.flights.clients | {each.client for each in self._departed}
        landed = {flight.client for flight in self._landed}
        request = Request(self.places - len(flying), flying | landed, selection, waits=not flying)
        chosen = select(message, request)
        now = self.system.now  # the clock may have waited for clients
        for client in chosen.clients:
            trains = client in chosen.training
            turn = exchange.count_start(client, drops_out=not trains)
            samples = engine.schedule.samples(client, message.round) if trains else 0
            end = now + self._seconds(client, samples, turn.download_bytes, 0)
            if trains:
                self._departed.append(Departure(client, now, turn.download_bytes, end))
            else:
                flight = Flight(client, message.round, now, end, message.weights, None)
                self.flights.begin(flight)

    def _train(self, exchange: Exchange, engine: Engine) -> None:
        """Train all departed clients together, and compute when each update arrives."""
        departed, self._departed = {each.client: each for each in self._departed}, []
        message = exchange.message
        for update in engine.train(list(departed), message):
            start = departed[update.client]
            sizes = update.samples, start.download_bytes, update.nbytes
            end = start.time + self._seconds(update.client, *sizes)
            flight = Flight(update.client, message.round, start.time, end, message.weights, update)
            self.flights.begin(flight)

    def _seconds(self, client: int, samples: int, download: int, upload: int) -> float:
        """The simulated seconds of a client's turn: download, training and upload."""
        assert self.system.devices is not None  # ``needs`` has ensured this
        return float(self.system.devices.seconds([client], [samples], [download], [upload])[0])

    def _arrived(self, flight: Flight, update: Update, exchange: Exchange) -> Update:
        """Rebase a stale update onto the current global weights; its step gets the weight s."""
        message = exchange.message
        staleness = message.round - flight.round
        self._staleness.append(staleness)
        if not staleness:
            return update
        base = flight.base if self.step_from == "received" else message.weights
        weight = self.weight(staleness)
        return update.with_step(base, message.weights, weight, self.parameters)
