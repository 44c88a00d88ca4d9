"""The round loop."""

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence

from matplotlib.figure import Figure

from fedexp.client import ClientModule
from fedexp.engines.base import Engine
from fedexp.evaluation.evaluator import Evaluator
from fedexp.evaluation.meter import Meter
from fedexp.faults.base import Faults
from fedexp.messages import Message, Tensors, Update
from fedexp.placement import Placement
from fedexp.quarantine import Quarantine
from fedexp.ranks import Ranks
from fedexp.samplers.base import Sampler
from fedexp.server import Server
from fedexp.tracking.tracker import Record, Tracker

LOGGER = logging.getLogger(__name__)


class Federation:
    """A federation of clients around one server; with several processes, each has all of it."""

    def __init__(
        self,
        ranks: Ranks,
        placement: Placement,
        server: Server,
        sampler: Sampler,
        engine: Engine,
        faults: Faults,
        quarantine: Quarantine,
        evaluator: Evaluator,
        tracker: Tracker,
        figures: Callable[[Message], dict[str, Figure]],
    ) -> None:
        self.ranks, self.placement = ranks, placement
        self.server, self.sampler, self.engine = server, sampler, engine
        self.faults, self.quarantine = faults, quarantine
        self.evaluator, self.tracker, self.figures = evaluator, tracker, figures

    def run(
        self, rounds: int, done: int = 0, checkpoint: Callable[[int], None] = lambda round: None
    ) -> None:
        """Train up to round ``rounds``.

        Args:
            rounds: T.
            done: how many of them have been done; their results are in the server and the store.
            checkpoint: called after every round with its number.
        """
        if not done:
            self.tracker.log(Record(round=0, figures=self.figures(self.server.broadcast(0))))
        for round in range(done + 1, rounds + 1):
            self.tracker.log(self.run_round(round))
            checkpoint(round)

    def run_round(self, round: int) -> Record:
        """One round: send, choose, train, merge, measure."""
        message = self.server.broadcast(round)
        meter = Meter(message)
        answers = self._probe(self.sampler.candidates(round), message)
        self.sampler.hear(meter.watch_answers(answers))
        cohort = meter.watch_choice(self.sampler.select(round))
        arrived = meter.watch(self._train(cohort, message))
        sound = meter.note(self.quarantine.watch(arrived, round))
        watchers = (meter, self.quarantine, self.evaluator, self.placement)
        if not self.server.aggregate(self.evaluator.watch(sound, message), watchers):
            LOGGER.warning("round %d: no update came in; the global model stays as it was", round)
        metrics = meter.metrics() | self.quarantine.metrics() | self.server.metrics()
        metrics |= self.faults.metrics(round, cohort)
        result = self.server.broadcast(round)
        scores, figures = self.evaluator(result), self.figures(result)
        return Record(round, metrics | scores.metrics, scores.per_class, figures)

    def _probe(self, asked: Sequence[int], message: Message) -> Iterable[tuple[int, Tensors]]:
        """The answers of all whom the sampler asks."""
        if not asked:
            return ()
        return self.ranks.merge(self.engine.probe(self.placement.mine(asked), message))

    def _train(self, cohort: Sequence[int], message: Message) -> Iterator[Update]:
        """The updates of this rank's clients who do not drop out, as they arrive."""
        heard = [client for client in cohort if not self.faults.lost(message.round, client)]
        return self.engine.train(self.placement.mine(heard), message)

    def global_model(self, round: int) -> ClientModule:
        """The resident module as the global model after this round, in eval mode."""
        return self.engine.resources.seat_global(self.server.broadcast(round)).eval()
