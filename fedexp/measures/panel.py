"""``Measures``: calls all measures of a run."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import reduce
from operator import or_
from typing import Any, Literal

from fedexp.core import results
from fedexp.core.error_notes import noted
from fedexp.core.messages import Message, Tensors, Update
from fedexp.core.reducible import Contribution, Reducible, joined, split
from fedexp.core.server import Server
from fedexp.distributed.ranks import Ranks
from fedexp.measures.after_round import AfterRound
from fedexp.measures.measure import Better, Measure, Measured
from fedexp.measures.scoring.scoring import Scoring
from fedexp.system.exchange import Exchange


class Measures:
    """Calls the measures of a run at every step of a round, in the config's order.

    Args:
        measures: name -> measure.
        rounds: T, the number of rounds.
        scoring: loads and scores models.
        ranks: the processes that share the run.

    Attributes:
        exchange: the messages, bytes and seconds of the current round.
    """

    def __init__(
        self, measures: Mapping[str, Measure], rounds: int, scoring: Scoring, ranks: Ranks
    ) -> None:
        self._measures, self._rounds = dict(measures), rounds
        self._scoring, self._ranks = scoring, ranks

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

    def before_training(self, message: Message, server: Server) -> Measured:
        """The results before the first round."""
        self.exchange = Exchange(message)
        return self.after(message, server)

    def after(self, message: Message, server: Server, quarantined: Sequence[int] = ()) -> Measured:
        """The results after a round; a measure sees the results of the measures before it.

        Except before training, the metric ``time/eval_s`` is added: the seconds of all measures.

        Args:
            message: the round's number and the new global model.
            server: the server after its step.
            quarantined: clients whose update was left out, see ``AfterRound``.
        """
        self.exchange.end()
        start, scoring = time.perf_counter(), self._scoring
        after = AfterRound(
            message, self._rounds, self.exchange, quarantined, server, self._ranks, scoring
        )
        for name, measure in self._due(message.round).items():
            components = {**scoring.resources.components, f"measure.{name}": measure}
            with noted(f"measuring after round {message.round}", components):
                found = _checked(measure(after), name, measure)
            after = replace(after, found=after.found | found)
        seconds = time.perf_counter() - start
        return after.found | Measured({"time/eval_s": seconds} if message.round else {})

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

    def _reducibles(self) -> dict[str, Reducible]:
        return {"": self.exchange, **self._measures}


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
