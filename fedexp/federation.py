"""The loop over the rounds of a run."""

import logging
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

from fedexp.compatibility.traits import DRAWS_REPEATEDLY
from fedexp.coordination.base import Coordination
from fedexp.core import results
from fedexp.core.client import ClientModule
from fedexp.core.error_notes import noted
from fedexp.core.messages import Message, Update
from fedexp.core.server import Server
from fedexp.data.federated import FederatedData
from fedexp.distributed.placement import Placement
from fedexp.distributed.ranks import Ranks
from fedexp.engines.base import Engine
from fedexp.faults.quarantine import Quarantine
from fedexp.measures.measures import Measures, Pending
from fedexp.samplers.base import Sampler
from fedexp.samplers.request import Request, Selected
from fedexp.state.client_store import ClientStore
from fedexp.system.round_time import RoundTime
from fedexp.system.system import System
from fedexp.tracking.tracker import Record, Tracker

LOGGER = logging.getLogger(__name__)


class Federation:
    """A server and its clients; each process of a run has its own ``Federation``.

    Args:
        server: holds the global weights and merges the updates.
        sampler: chooses the cohorts.
        engine: trains clients.
        quarantine: refuses updates and merged weights that are not finite.
        measures: evaluates the models and computes the metrics of a round.
        tracker: gets the record of every round.
        ranks: the processes of the run.
        placement: decides which process trains which client.
        coordination: decides when clients start and which updates a step takes.
    """

    def __init__(
        self,
        server: Server,
        sampler: Sampler,
        engine: Engine,
        quarantine: Quarantine,
        measures: Measures,
        tracker: Tracker,
        ranks: Ranks,
        placement: Placement,
        coordination: Coordination,
    ) -> None:
        self.server, self.sampler, self.engine = server, sampler, engine
        self.quarantine, self.measures, self.tracker = quarantine, measures, tracker
        self.ranks, self.placement, self.coordination = ranks, placement, coordination
        self._components = {
            **engine.resources.components,
            **measures.components,
            "coordination": coordination,
        }
        self._pending: deque[Pending] = deque()

    @property
    def module(self) -> ClientModule:
        """The resident module: every client's weights are copied into it for the client's turn."""
        return self.engine.resources.module

    @property
    def data(self) -> FederatedData:
        """The population's data."""
        return self.engine.resources.data

    @property
    def store(self) -> ClientStore:
        """The states of this process's clients."""
        return self.engine.resources.store

    @property
    def system(self) -> System:
        """The simulated devices and the clock."""
        return self.engine.resources.system

    def run(
        self, rounds: int, done: int = 0, stops_after: Callable[[int], bool] = lambda round: False
    ) -> int:
        """Train up to round ``rounds``.

        Args:
            rounds: T, the number of rounds.
            done: number of rounds already trained; their results are in the server and the store.
            stops_after: round -> whether training ends after this round; called after each round.
                A ``stops_after`` that saves a checkpoint must first call ``log_pending``.

        Returns:
            The number of the last round.
        """
        if not done:
            message = self.server.broadcast(0)
            self._pending.append(self.measures.before_training(message, self.server))
        for round in range(done + 1, rounds + 1):
            with noted(f"running round {round}", self._components):
                self._pending.append(self.start_round(round))
            self.log_pending(leave=1)
            if stops_after(round):
                self.log_pending()
                return round
        self.log_pending()
        return max(done, rounds)

    def run_round(self, round: int) -> Record:
        """Run one round and return its record."""
        with noted(f"running round {round}", self._components):
            return _record(self.start_round(round))

    def start_round(self, round: int) -> Pending:
        """Run one round; with ``evaluation.overlap`` the evaluation may go on after the return."""
        message = self.server.send(round)
        self.measures.begin_round(message)
        self.store.begin_round()
        trained = self.coordination.updates(self.measures.exchange, self.select, self.engine)
        for update in self.accepted(trained):
            self.measures.observe(update)
            self.server.add(update)
        self.ranks.all_reduce([self.server, self.measures, self.quarantine, self.placement])
        self.advance_clock()
        if not self.server.step(partial(self.quarantine.accepts_model, round=round)):
            LOGGER.warning("round %d: no update came in; the global model stays as it was", round)
        return self.evaluate(self.server.broadcast(round))

    def select(self, message: Message, request: Request) -> Selected:
        """Choose the cohort, or fewer clients if ``request`` asks for fewer.

        A sampler may first ask some clients for values, and then choose by the answers. Chosen
        clients do not train if they drop out or are too slow for a simulated deadline.
        """
        exchange, faults = self.measures.exchange, self.engine.resources.faults
        present = self.system.available(self.sampler.with_data, request.busy, request.waits)
        self.sampler.limit_to(present, request.places, request.selection)
        if not self.sampler.cohort_size:
            return Selected([], [])
        whose = "sampler", self.sampler, "candidates(...)"
        candidates = self.sampler.candidates(message.round)
        asked = results.clients(candidates, self.sampler.with_data, *whose)
        local = self.engine.probe(self.placement.local_clients(asked), message)
        answers = self.ranks.gather_pairs(local) if asked else ()
        self.sampler.observe(exchange.count_answers(answers))
        cohort = exchange.count_cohort(_checked(self.sampler.select(message.round), self.sampler))
        self.server.sent_to(exchange.receivers)
        starting = [c for c in cohort if not faults.drops_out(message.round, c)]
        if self.system.limits_turns:
            starting, left_out = self.engine.schedule.plan(
                starting, message, exchange.downloads_left
            )
            exchange.leave_out(left_out)
        return Selected(cohort, self.placement.bring(starting))

    def accepted(self, updates: Iterable[Update]) -> Iterator[Update]:
        """Let attackers change updates, then yield each update that the quarantine accepts."""
        exchange, faults = self.measures.exchange, self.engine.resources.faults
        self.quarantine.begin_round()
        whose = "coordination", self.coordination, "updates(...)"
        sent = (
            results.instance(each, Update, *whose)
            for each in results.instance(updates, Iterable, *whose)  # type: ignore[type-abstract]
        )
        arrivals = exchange.count_arrivals(self.placement.timed(sent))
        for update in faults.collude(arrivals, exchange.message):
            results.update(update, exchange.message.weights, "faults", faults, "collude(...)")
            if self.quarantine.accepts(update, exchange.message.round):
                yield update

    def advance_clock(self) -> None:
        """Advance the simulated clock, if any, to the round's end; tell the sampler the seconds."""
        exchange = self.measures.exchange
        exchange.time = self.coordination.advance(exchange)
        whose = "coordination", self.coordination
        exchange.coordination = results.numbers(self.coordination.metrics(), *whose, "metrics()")
        if exchange.time is not None:
            results.instance(exchange.time, RoundTime, *whose, "advance(...)")
            self.sampler.observe_seconds(exchange.time.of_clients)

    def evaluate(self, message: Message) -> Pending:
        """Start the measures after a round; ``message`` holds the new global model."""
        if self.measures.scores_personal(message.round):
            self.placement.even_out()
        return self.measures.after(message, self.server, self.quarantine.clients)

    def log_pending(self, leave: int = 0) -> None:
        """Log the evaluated rounds in order; wait until at most ``leave`` rounds are not logged."""
        while self._pending and (len(self._pending) > leave or self._pending[0].is_complete):
            self.tracker.log(_record(self._pending.popleft()))

    def global_model(self, round: int) -> ClientModule:
        """Load the current global model (of ``round``) into the resident module, in eval mode."""
        return self.engine.resources.load_global(self.server.broadcast(round)).eval()


def _checked(chosen: Any, sampler: Sampler) -> list[int]:
    """The clients that the sampler chose: at most K eligible ones, each once unless declared."""
    whose = "sampler", sampler, "select(...)"
    cohort = results.clients(chosen, sampler.eligible, *whose)
    if len(cohort) > sampler.cohort_size:
        problem = f"returned {len(cohort)} clients; it must return at most {sampler.cohort_size}"
        raise results.wrong(problem, *whose)
    twice = [client for client, draws in Counter(cohort).items() if draws > 1]
    if twice and DRAWS_REPEATEDLY not in sampler.traits:
        problem = f"returned client {twice[0]} twice; a sampler that draws clients repeatedly must"
        raise results.wrong(f"{problem} have the trait DRAWS_REPEATEDLY", *whose)
    return cohort


def _record(pending: Pending) -> Record:
    found = pending.result()
    tables = found.tables, found.logs
    return Record(pending.round, found.metrics, found.per_class, found.figures, *tables)
