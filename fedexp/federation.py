"""The round loop."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fedexp.core.client import ClientModule
from fedexp.core.messages import Message, Update
from fedexp.core.server import Server
from fedexp.distributed.ranks import Ranks
from fedexp.engines.base import Engine
from fedexp.evaluation.evaluator import Evaluator, Scores
from fedexp.evaluation.meter import Meter
from fedexp.faults.base import Faults
from fedexp.faults.quarantine import Quarantine
from fedexp.samplers.base import Sampler
from fedexp.state.placement import Placement
from fedexp.tracking.pictures import Pictures
from fedexp.tracking.tracker import Record, Tracker

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LOGGER = logging.getLogger(__name__)


@dataclass(frozen=True)
class Waiting:
    """A trained round whose scores may still be missing; else as ``Record``."""

    round: int
    metrics: Mapping[str, float]
    scores: Future[Scores]
    figures: Mapping[str, Figure]

    @property
    def is_complete(self) -> bool:
        """Whether the scores are there."""
        return self.scores.done()

    def record(self) -> Record:
        """The record; waits for the scores."""
        found = self.scores.result()
        return Record(self.round, {**self.metrics, **found.metrics}, found.per_class, self.figures)


class Federation:
    """A server and its clients; with several processes, each has a copy of it."""

    def __init__(
        self,
        ranks: Ranks,
        placement: Placement,
        server: Server,
        sampler: Sampler,
        engine: Engine,
        faults: Faults,
        quarantine: Quarantine,
        meter: Meter,
        evaluator: Evaluator,
        tracker: Tracker,
        figures: Pictures,
    ) -> None:
        self.ranks, self.placement = ranks, placement
        self.server, self.sampler, self.engine = server, sampler, engine
        self.faults, self.quarantine = faults, quarantine
        self.meter, self.evaluator = meter, evaluator
        self.tracker, self.figures = tracker, figures
        self._waiting: deque[Waiting] = deque()

    def run(
        self, rounds: int, done: int = 0, stops_after: Callable[[int], bool] = lambda round: False
    ) -> int:
        """Train up to round ``rounds``.

        Args:
            rounds: T.
            done: number of rounds already trained, whose results are in the server and the store.
            stops_after: called after every round with its number: may save it, after
                ``log_waiting``, and says whether training ends there.

        Returns:
            The number of the last round.
        """
        if not done:
            self.tracker.log(Record(round=0, figures=self.figures(self.server.broadcast(0))))
        for round in range(done + 1, rounds + 1):
            self._waiting.append(self.start_round(round))
            self.log_waiting(leave=1)
            if stops_after(round):
                self.log_waiting()
                return round
        self.log_waiting()
        return max(done, rounds)

    def log_waiting(self, leave: int = 0) -> None:
        """Log the rounds whose scores are there, in order, and wait for all but ``leave``."""
        while self._waiting and (len(self._waiting) > leave or self._waiting[0].is_complete):
            self.tracker.log(self._waiting.popleft().record())

    def run_round(self, round: int) -> Record:
        """Broadcast, select, train, quarantine non-finite updates, aggregate, evaluate."""
        return self.start_round(round).record()

    def start_round(self, round: int) -> Waiting:
        """As ``run_round``; its evaluation may go on (``evaluation.overlap``)."""
        message = self.server.broadcast(round)
        self.meter.begin_round(message)
        self.evaluator.begin_round(message)
        cohort = self.select(message)
        updates = self.train(cohort, message)
        accepted = self.quarantine.finite(updates, round)
        if not self.server.aggregate(self.observed(accepted)):
            LOGGER.warning("round %d: no update came in; the global model stays as it was", round)
        return self.evaluate(round, cohort)

    def select(self, message: Message) -> Sequence[int]:
        """The cohort; a sampler that needs answers from clients first gets them from the engine."""
        candidates = self.sampler.candidates(message.round)
        local = self.engine.probe(self.placement.local_clients(candidates), message)
        answers = self.ranks.gather_pairs(local) if candidates else ()
        self.sampler.observe(self.meter.count_answers(answers))
        return self.meter.count_cohort(self.sampler.select(message.round))

    def train(self, cohort: Sequence[int], message: Message) -> Iterator[Update]:
        """The updates of this rank's share of the cohort as they arrive; drop-outs send none."""
        present = [c for c in cohort if not self.faults.drops_out(message.round, c)]
        local = self.placement.bring(present)
        updates = self.placement.timed(self.engine.train(local, message))
        return self.meter.count_arrivals(updates)

    def observed(self, updates: Iterator[Update]) -> Iterator[Update]:
        """The same updates; the meter, the evaluator and the figures observe each of them."""
        for update in updates:
            self.meter.observe(update)
            self.evaluator.observe(update)
            self.figures.observe(update)
            yield update

    def evaluate(self, round: int, cohort: Sequence[int]) -> Waiting:
        """The round's record: metrics of the cohort, figures, and scores, which may come later."""
        metrics = self.meter.metrics() | self.quarantine.metrics() | self.server.metrics()
        metrics |= self.faults.metrics(round, cohort)
        metrics["cost/server_memory_bytes"] = self.server.state_nbytes
        result = self.server.broadcast(round)
        if self.evaluator.scores_personal(round):
            self.placement.even_out()
        scores = self.evaluator.start(result)
        return Waiting(round, metrics, scores, self.figures(result))

    def global_model(self, round: int) -> ClientModule:
        """The resident module as the global model after this round, in eval mode."""
        return self.engine.resources.load_global(self.server.broadcast(round)).eval()
