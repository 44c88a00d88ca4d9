"""The evaluator: which metrics are measured in a round, and their values."""

import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

from fedexp.config.schema import Evaluation
from fedexp.core.messages import Message, Tensors, Update
from fedexp.data.federated import FederatedData
from fedexp.distributed.ranks import Contribution, Ranks
from fedexp.engines.base import Engine
from fedexp.engines.predictions import Predictions
from fedexp.evaluation.alignment import Alignment
from fedexp.evaluation.geometry import global_angles, local_angles, mean_over_clients
from fedexp.evaluation.personal import per_class, personal_accuracies, personal_metrics


@dataclass
class Scores:
    """One round's evaluation: metrics by name, and the global model's accuracy by class name."""

    metrics: dict[str, float] = field(default_factory=dict)
    per_class: dict[str, float] = field(default_factory=dict)


class Evaluator:
    """Scores the global model every ``every`` rounds, personal models every ``personal_every``.

    Both are also measured in the last round, and so is the membership attack. If clients hold out
    samples for validation, the models are scored on those, too. The global model is measured by the
    first rank alone.

    Args:
        schedule: what is measured, and when.
        rounds: T.
        engine: evaluates models.
        data: the population's data.
        parameters: names of the shared parameters, whose steps are compared.
        attack: the membership metrics of the global model in a message.
        ranks: the processes; each scores the personal models of its own clients.
    """

    def __init__(
        self,
        schedule: Evaluation,
        rounds: int,
        engine: Engine,
        data: FederatedData,
        parameters: Collection[str],
        attack: Callable[[Message], dict[str, float]],
        ranks: Ranks,
    ) -> None:
        self.schedule, self.rounds, self.engine, self.data = schedule, rounds, engine, data
        self.parameters, self.attack, self.ranks = parameters, attack, ranks
        self.labels = data.test.labels.cpu()
        self._alignment: Alignment | None = None

    def begin_round(self, message: Message) -> None:
        """Start a round; clients' steps are measured from the weights in ``message``."""
        if self.schedule.step_cosine:
            self._alignment = Alignment(message.weights, self.parameters)

    def observe(self, update: Update) -> None:
        """Add an accepted client's step, if steps are compared."""
        if self._alignment:
            self._alignment.observe(update)

    def contribution(self) -> Contribution:
        """The sums of the steps of this rank's clients."""
        return self._alignment.contribution() if self._alignment else Contribution()

    def set_reduced(self, sums: Tensors, items: Sequence[Any]) -> None:
        """The sums over all ranks."""
        if self._alignment:
            self._alignment.set_reduced(sums, items)

    def __call__(self, message: Message) -> Scores:
        """The scores of round ``message.round``; ``message`` holds the new global model."""
        start = time.perf_counter()
        scores = Scores()
        if self.ranks.is_first and self._due(message.round, self.schedule.every):
            self._score_global(message, scores)
        if self.schedule.personal != "off" and self._due(
            message.round, self.schedule.personal_every
        ):
            self._score_personal(message, scores)
        if self._alignment:
            scores.metrics |= self._alignment.metrics(message.weights)
        attacks = self.schedule.membership.attack != "off" and message.round == self.rounds
        if self.ranks.is_first and attacks:
            scores.metrics |= self.attack(message)
        scores.metrics["time/eval_s"] = time.perf_counter() - start
        return scores

    def _due(self, round: int, every: int) -> bool:
        return round % every == 0 or round == self.rounds

    def _score_global(self, message: Message, scores: Scores) -> None:
        predictions = self.engine.evaluate(message)
        if predictions is None:
            return
        classes = self.data.description.classes
        correct, total = per_class(predictions.correct, self.labels, len(classes))
        scores.metrics["global/accuracy"] = predictions.correct.double().mean().item()
        scores.metrics["global/loss"] = predictions.loss
        scores.metrics |= global_angles(predictions, self.data.class_counts)
        if held_out := self._validate(message):
            scores.metrics["validation/accuracy"] = held_out.correct.double().mean().item()
            scores.metrics["validation/loss"] = held_out.loss
        scores.per_class = {
            name: hits.item() / of.item()
            for name, hits, of in zip(classes, correct, total, strict=True)
            if of
        }

    def _validate(self, message: Message) -> Predictions | None:
        """The global model on all clients' held-out samples; None if there are none."""
        if not len(self.data.validation):
            return None
        return self.engine.evaluate(message, self.data.validation)

    def _score_personal(self, message: Message, scores: Scores) -> None:
        scored = (
            (number, self._score_client(number, predictions))
            for number, predictions in self.engine.evaluate_personal(message)
        )
        found = [each for _, each in self.ranks.gather_pairs(scored)]
        accuracies, others = [each for each, _ in found], [each for _, each in found]
        scores.metrics |= personal_metrics(accuracies) | mean_over_clients(others)

    def _score_client(
        self, number: int, predictions: Predictions
    ) -> tuple[dict[str, float], dict[str, float]]:
        """Of one personal model: accuracies; and metrics of which only the mean is kept."""
        client = self.data.clients[number]
        accuracies = personal_accuracies(predictions, self.labels, client)
        others = local_angles(predictions, client.class_counts)
        if len(predictions.validation):
            correct = predictions.validation.double().mean().item()
            others["validation/personal_accuracy"] = correct
        return accuracies, others
