"""The evaluator: which metrics are due in a round, and what they are."""

import time
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field

from fedexp.data.federated import FederatedData
from fedexp.engines.base import Engine
from fedexp.evaluation.alignment import Alignment
from fedexp.evaluation.geometry import global_angles, local_angles, mean_over_clients
from fedexp.evaluation.personal import per_class, personal_accuracies, personal_metrics
from fedexp.messages import Message, Update
from fedexp.schema import Evaluation


@dataclass
class Scores:
    """One round's evaluation: metrics by name, and the global model's accuracy by class name."""

    metrics: dict[str, float] = field(default_factory=dict)
    per_class: dict[str, float] = field(default_factory=dict)


class Evaluator:
    """Scores the global model every ``every`` rounds, personal models every ``personal_every``.

    Both are always measured in the last round, and then the global model is attacked, if asked.

    Args:
        schedule: what is measured, and when.
        rounds: T.
        engine: evaluates models.
        data: the population's data.
        parameters: names of the shared parameters, whose steps are compared.
        attack: the membership metrics of the global model in a message.
    """

    def __init__(
        self,
        schedule: Evaluation,
        rounds: int,
        engine: Engine,
        data: FederatedData,
        parameters: Collection[str],
        attack: Callable[[Message], dict[str, float]],
    ) -> None:
        self.schedule, self.rounds, self.engine, self.data = schedule, rounds, engine, data
        self.parameters, self.attack = parameters, attack
        self.labels = data.test.labels.cpu()
        self._alignment: Alignment | None = None

    def watch(self, updates: Iterable[Update], message: Message) -> Iterable[Update]:
        """The same updates on their way to the server; their steps from ``message`` are noted."""
        if not self.schedule.step_cosine:
            return updates
        self._alignment = Alignment(message.weights, self.parameters)
        return self._alignment.watch(updates)

    def __call__(self, message: Message) -> Scores:
        """What is due after round ``message.round``; ``message`` holds the new global model."""
        start = time.perf_counter()
        scores = Scores()
        if self._due(message.round, self.schedule.every):
            self._score_global(message, scores)
        if self.schedule.personal != "off" and self._due(
            message.round, self.schedule.personal_every
        ):
            self._score_personal(message, scores)
        if self._alignment is not None:
            scores.metrics |= self._alignment.metrics(message.weights)
        if self.schedule.membership.attack != "off" and message.round == self.rounds:
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
        scores.metrics |= global_angles(predictions)
        scores.per_class = {
            name: hits.item() / of.item()
            for name, hits, of in zip(classes, correct, total, strict=True)
            if of
        }

    def _score_personal(self, message: Message, scores: Scores) -> None:
        accuracies, angles = [], []
        for number, predictions in self.engine.evaluate_personal(message):
            client = self.data.clients[number]
            accuracies.append(personal_accuracies(predictions, self.labels, client))
            angles.append(local_angles(predictions, client.class_counts))
        scores.metrics |= personal_metrics(accuracies) | mean_over_clients(angles)
