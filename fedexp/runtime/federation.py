"""The loop over the rounds of a run."""

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from lightning.fabric import Fabric

from fedexp.config.compatibility.traits import DRAWS_REPEATEDLY
from fedexp.core import results
from fedexp.core.client import ClientModule
from fedexp.core.error_notes import noted
from fedexp.core.messages import Message, Update
from fedexp.data.federated import FederatedData
from fedexp.data.load import load_data
from fedexp.distributed.fabric import cpu_fabric
from fedexp.distributed.placement import Placement
from fedexp.distributed.ranks import ranks_of
from fedexp.faults.quarantine import Quarantine
from fedexp.measures.panel import Measures
from fedexp.measures.round_results import Measured
from fedexp.runtime.assembly import assemble, expected_samples, make_engine, make_server
from fedexp.runtime.plan import Plan
from fedexp.runtime.population import SIMULATED, Population
from fedexp.samplers.base import Sampler
from fedexp.samplers.request import Request, Selected
from fedexp.state.checkpoint import Checkpoint
from fedexp.system.round_time import RoundTime
from fedexp.tracking.tracker import Record, Tracker

LOGGER = logging.getLogger(__name__)


class Federation:
    """A server and its clients; each process of a run has its own ``Federation``.

    Args:
        plan: the checked config, and the objects that were built from it.
        fabric: device, precision and processes.
        data: the population's data.
        tracker: gets the record of every round; None to record nothing.
        folder: folder for client states and server tensors that exceed the RAM bound; None uses
            temporary folders.
        population: reaches the clients, in this program's processes or elsewhere.

    Attributes:
        data, tracker: the arguments.
        module: the resident module: every client's weights are copied into it for the client's
            turn.
        store: the states of this process's clients.
        engine: trains clients.
        server: holds the global weights and merges the updates.
        sampler: chooses the cohorts.
        coordination: decides when clients start and which updates a step takes.
        faults: the injected faults.
        system: the simulated devices and the clock.
        quarantine: refuses updates and merged weights that are not finite.
        measures: evaluates the models and computes the metrics of a round.
        ranks: the processes of the run.
        placement: decides which process trains which client.
    """

    def __init__(
        self,
        plan: Plan,
        fabric: Fabric,
        data: FederatedData,
        tracker: Tracker | None = None,
        folder: Path | None = None,
        population: Population = SIMULATED,
    ) -> None:
        setting, resources = assemble(plan, fabric, data, folder, population)
        self.data, self.tracker, self.ranks = data, tracker or Tracker(), ranks_of(fabric)
        self.module, self.store, self._resources = resources.module, resources.store, resources
        self.engine = population.engine(resources, partial(make_engine, plan))
        self.server, self.sampler = make_server(plan, resources), plan.sockets.sampler
        self.coordination, self.faults, self.system = plan.coordination, plan.faults, plan.system
        for name, measure in plan.measures.items():
            with noted("setting up", {f"measure.{name}": measure}):
                measure.setup(setting, resources)
        scoring = population.scoring(self.engine)
        self.measures = Measures(plan.measures, plan.config.rounds, scoring, self.ranks)
        self.quarantine = Quarantine(plan.config.on_bad_update)
        by_time = plan.config.engine.balance == "time"
        work = expected_samples(plan, resources.last_batch, data.sizes.numpy())
        self.placement = Placement(self.ranks, work, self.store, by_time)
        self._components = {
            **resources.components,
            **self.measures.components,
            "coordination": self.coordination,
        }

    @classmethod
    def on_cpu(cls, plan: Plan) -> "Federation":
        """A simulated federation in this process, on the CPU; it records nothing."""
        fabric = cpu_fabric()
        return cls(plan, fabric, load_data(plan.config, plan.source, fabric.device))

    def restore(self, checkpoint: Checkpoint) -> None:
        """Restore the checkpoint; every process restores its own clients. Raises InputError."""
        checkpoint.restore(
            self.server,
            self.measures,
            self.coordination,
            self.store,
            self.module.device,
            self.placement.local_clients,
        )
        self.placement.synchronize()

    def run(
        self, rounds: int, done: int = 0, stops_after: Callable[[int], bool] = lambda round: False
    ) -> int:
        """Train up to round ``rounds``.

        Args:
            rounds: T, the number of rounds.
            done: number of rounds already trained; their results are in the server and the store.
            stops_after: round -> whether training ends after this round; called after each round.

        Returns:
            The number of the last round.
        """
        if not done:
            message = self.server.broadcast(0)
            before = self.measures.before_training(message, self.server)
            self.tracker.log(_record(0, before))
        for round in range(done + 1, rounds + 1):
            self.tracker.log(self.run_round(round))
            if stops_after(round):
                return round
        return max(done, rounds)

    def run_round(self, round: int) -> Record:
        """Run one round and return its record."""
        with noted(f"running round {round}", self._components):
            message = self.server.send(round)
            self.measures.begin_round(message)
            self.store.begin_round()
            trained = self.coordination.updates(self.measures.exchange, self.select, self.engine)
            for update in self.accepted(trained):
                self.measures.observe(update)
                self.server.add(update)
            self.ranks.all_reduce([self.server, self.measures, self.quarantine, self.placement])
            self.quarantine.warn(round, len(self.measures.exchange.receipts))
            self.advance_clock()
            if not self.server.step(partial(self.quarantine.accepts_model, round=round)):
                LOGGER.warning(
                    "round %d: no update came in; the global model stays as it was", round
                )
            return _record(round, self.evaluate(self.server.broadcast(round)))

    def select(self, message: Message, request: Request) -> Selected:
        """Choose the cohort, or fewer clients if ``request`` asks for fewer.

        A sampler may first ask some clients for values, and then choose by the answers. Chosen
        clients do not train if they drop out or are too slow for a simulated deadline.
        """
        exchange, faults = self.measures.exchange, self.faults
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
        exchange, faults = self.measures.exchange, self.faults
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

    def evaluate(self, message: Message) -> Measured:
        """The results of the measures after a round; ``message`` holds the new global model."""
        if self.measures.scores_personal(message.round):
            self.placement.even_out()
        return self.measures.after(message, self.server, self.quarantine.clients)

    def global_model(self, round: int) -> ClientModule:
        """Load the current global model (of ``round``) into the resident module, in eval mode."""
        return self.load(self.server.broadcast(round))

    def load(self, message: Message) -> ClientModule:
        """Load the message's global model into the resident module, in eval mode."""
        return self._resources.load_global(message).eval()


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


def _record(round: int, found: Measured) -> Record:
    tables = found.tables, found.logs
    return Record(round, found.metrics, found.per_class, found.figures, *tables)
