"""``Measures``: calls all measures of a run."""

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from functools import partial, reduce
from operator import or_
from typing import Any, Literal

from fedexp.core import results
from fedexp.core.error_notes import noted
from fedexp.core.messages import Message, Tensors, Update
from fedexp.core.reducible import Contribution, Reducible, joined, split
from fedexp.core.server import Server
from fedexp.distributed.ranks import Ranks
from fedexp.measures.after_round import AfterRound
from fedexp.measures.exchange import Exchange
from fedexp.measures.measure import Better, Measure, Measured
from fedexp.measures.scoring.overlap import Overlap
from fedexp.measures.scoring.scoring import Scoring


@dataclass(frozen=True)
class Pending:
    """The results of the measures after a round; a second thread may still compute some of them.

    Attributes:
        round: the number of the round.
        names: the names of the measures, in the config's order.
        prompt: the results that are ready now.
        later: the results that a second thread computes; they may be ready later.
    """

    round: int
    names: Sequence[str]
    prompt: "Results"
    later: "Future[Results]"

    @property
    def is_complete(self) -> bool:
        """Whether all results are ready."""
        return self.later.done()

    def result(self) -> Measured:
        """Wait until all results are ready, and return them together.

        Except before training, the metric ``time/eval_s`` is added: the seconds of all measures.
        """
        parts = self.prompt, self.later.result()
        found = {name: each for part in parts for name, each in part.of_measures.items()}
        whole = reduce(or_, (found[name] for name in self.names), Measured())
        seconds = sum(part.seconds for part in parts)
        return whole | Measured({"time/eval_s": seconds} if self.round else {})


@dataclass(frozen=True)
class Results:
    """The results of some measures after a round.

    Attributes:
        of_measures: name -> result.
        seconds: the time that all these measures took together.
    """

    of_measures: Mapping[str, Measured] = field(default_factory=dict)
    seconds: float = 0.0


class Measures:
    """Calls the measures of a run at every step of a round, in the config's order.

    Args:
        measures: name -> measure.
        rounds: T, the number of rounds.
        scoring: loads and scores models.
        ranks: the processes that share the run.
        overlap: a thread that computes some measures while the next round trains; None: no thread.

    Attributes:
        exchange: the messages, bytes and seconds of the current round.
    """

    def __init__(
        self,
        measures: Mapping[str, Measure],
        rounds: int,
        scoring: Scoring,
        ranks: Ranks,
        overlap: Overlap | None = None,
    ) -> None:
        self._measures, self._rounds = dict(measures), rounds
        self._scoring, self._ranks, self._overlap = scoring, ranks, overlap

    def __getitem__(self, name: str) -> Measure:
        """The measure of this name."""
        return self._measures[name]

    @property
    def chosen(self) -> dict[str, Message]:
        """Name of a measure -> the global model that the measure chose to keep as a file."""
        found = {name: measure.chosen for name, measure in self._measures.items()}
        return {name: message for name, message in found.items() if message is not None}

    @property
    def components(self) -> dict[str, object]:
        """Place in the config -> measure."""
        return {f"measure.{name}": measure for name, measure in self._measures.items()}

    def begin_round(self, message: Message) -> None:
        """Start a round; the clients start from ``message``."""
        self.exchange = Exchange(message)
        for measure in self._measures.values():
            measure.begin_round(message)

    def observe(self, update: Update) -> None:
        """Show an accepted update to the measures."""
        self.exchange.observe(update)
        for measure in self._measures.values():
            measure.observe(update)

    def contribution(self) -> Contribution:
        """The round's counts and observations of this process: of ``exchange`` and each measure."""
        return joined(self._reducibles())

    def set_reduced(self, sums: Tensors, items: Sequence[Any]) -> None:
        """Give ``exchange`` and each measure the counts and observations of all processes."""
        split(self._reducibles(), sums, items)

    def scores_personal(self, round: int) -> bool:
        """Whether a measure that is due after this round uses personal models."""
        return any(measure.remembers for measure in self._due(round).values())

    def before_training(self, message: Message, server: Server) -> Pending:
        """The results before the first round."""
        self.exchange = Exchange(message)
        return self.after(message, server)

    def after(self, message: Message, server: Server, quarantined: Sequence[int] = ()) -> Pending:
        """The results after a round.

        With ``evaluation.overlap``, some results may come later, while the next round trains.

        Args:
            message: the round's number and the new global model.
            server: the server after its step.
            quarantined: clients whose update was left out, see ``AfterRound``.
        """
        self.exchange.end()
        view = partial(
            AfterRound,
            rounds=self._rounds,
            exchange=self.exchange,
            quarantined=quarantined,
            server=server,
            ranks=self._ranks,
        )
        due = self._due(message.round)
        if self._overlap and message.round < self._rounds and self._fits(self._overlap, due):
            later = {name: measure for name, measure in due.items() if measure.overlaps}
            now = {name: measure for name, measure in due.items() if not measure.overlaps}
            uses_models = any(measure.remembers for measure in later.values())
            store = self._scoring.resources.store if uses_models else None
            pending = self._overlap.submit(message, store, partial(_run, later, view))
        else:
            if self._overlap:
                self._overlap.wait()  # results of earlier rounds come first
            now, pending = due, Future()
            pending.set_result(Results())
        prompt = _run(now, view, message, self._scoring)
        return Pending(message.round, list(due), prompt, pending)

    def state_dict(self) -> dict[str, Any]:
        """For a checkpoint, name of a measure -> its state; measures without state are absent."""
        states = {name: measure.state_dict() for name, measure in self._measures.items()}
        return {name: state for name, state in states.items() if state}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Inverse of ``state_dict``."""
        for name, of_measure in state.items():
            self._measures[name].load_state_dict(of_measure)

    def _due(self, round: int) -> dict[str, Measure]:
        return {n: each for n, each in self._measures.items() if each.due(round, self._rounds)}

    def _fits(self, overlap: Overlap, due: Mapping[str, Measure]) -> bool:
        """Whether the second thread can keep the personal models that its measures need."""
        uses_models = any(measure.remembers and measure.overlaps for measure in due.values())
        return not uses_models or overlap.keeps_models(self._scoring.resources.store)

    def _reducibles(self) -> dict[str, Reducible]:
        return {"": self.exchange, **self._measures}


def _run(
    measures: Mapping[str, Measure],
    view: Callable[..., AfterRound],
    message: Message,
    scoring: Scoring,
) -> Results:
    """Call these measures one after another; each measure sees the results of earlier measures."""
    start, found = time.perf_counter(), {}
    after = view(message=message, scoring=scoring)
    for name, measure in measures.items():
        components = {**scoring.resources.components, f"measure.{name}": measure}
        with noted(f"measuring after round {message.round}", components):
            found[name] = _checked(measure(after), name, measure)
        after = replace(after, found=after.found | found[name])
    return Results(found, time.perf_counter() - start)


def _checked(found: Any, name: str, measure: Measure) -> Measured:
    """The result of a measure: numbers, figures, and tables with columns of one length."""
    whose = f"measure.{name}", measure, "__call__(...)"
    results.instance(found, Measured, *whose)
    results.numbers(found.metrics, *whose)
    results.numbers(found.per_class, *whose)
    for title, table in {**found.tables, **found.logs}.items():
        lengths = {column: len(values) for column, values in table.items()}
        if len(set(lengths.values())) > 1:
            columns = ", ".join(f"{column} has {length}" for column, length in lengths.items())
            problem = f"returned the table {title}, whose columns differ in length: {columns}"
            raise results.wrong(problem, *whose)
    for title, figure in found.figures.items():
        if not hasattr(figure, "savefig"):
            problem = f"returned {results.described(figure)} as the figure {title}; it must be a"
            raise results.wrong(f"{problem} matplotlib Figure", *whose)
    return results.instance(found, Measured, *whose)


def headlines(measures: Mapping[str, Measure]) -> dict[str, Better]:
    """Each headline of these measures -> whether higher or lower values are better."""
    return reduce(or_, (dict(measure.headlines) for measure in measures.values()), {})


def directions(measures: Mapping[str, Measure]) -> dict[str, Better]:
    """Name or pattern of each metric with a direction -> whether higher or lower is better."""
    return reduce(or_, (dict(measure.directions) for measure in measures.values()), {})


def remembers(measures: Mapping[str, Measure]) -> Literal["all", "cohort", "off"]:
    """The clients whose personal models these measures need; ``off``: no clients."""
    wanted = {measure.remembers for measure in measures.values()}
    return "all" if "all" in wanted else "cohort" if "cohort" in wanted else "off"
