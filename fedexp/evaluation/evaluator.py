"""The evaluator: which metrics are measured in a round, and their values."""

import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import Any

import torch
from torch import Tensor

from fedexp.config.schema import Evaluation
from fedexp.core.messages import Message, Tensors, Update
from fedexp.core.token_rows import scored_rows
from fedexp.data.federated import FederatedData
from fedexp.distributed.ranks import Contribution, Ranks
from fedexp.engines.base import Engine
from fedexp.engines.predictions import Predictions
from fedexp.evaluation.alignment import Alignment
from fedexp.evaluation.best_model import BestModel, copied
from fedexp.evaluation.geometry import global_angles, local_angles, mean_over_clients
from fedexp.evaluation.overlap import Overlap
from fedexp.evaluation.personal import (
    per_class,
    personal_accuracies,
    personal_metrics,
    standard_errors,
)
from fedexp.evaluation.scored_samples import ScoredSamples

FewShotMetrics = Callable[[Message], dict[str, float]] | None

_AT_ONCE = 64
"""Personal models whose accuracies and angles are computed at a time: bounds the memory."""


@dataclass
class Scores:
    """One round's evaluation: metrics by name, and the global model's accuracy by class name."""

    metrics: dict[str, float] = field(default_factory=dict)
    per_class: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class ClientScores:
    """One client's personal model.

    Attributes:
        accuracies: ``personal_accuracies``.
        others: metrics of which only the mean over clients is kept.
        correct: whether it got each sample right of the share of the test split, if it is scored on
            a share.
    """

    accuracies: dict[str, float]
    others: dict[str, float]
    correct: Tensor


class Evaluator:
    """Scores the global model every ``every`` rounds, personal models every ``personal_every``.

    Both are also measured in the last round, and so is the membership attack. If clients hold out
    samples for validation, the models are scored on those, too. The global model is measured by the
    first rank alone.

    With ``best``, personal models are scored in the last round only, as the best global model with
    and without tuning (``personal/accuracy_*`` and ``personal/accuracy_*_untuned``).

    Args:
        schedule: what is measured, and when.
        rounds: T.
        engine: evaluates models.
        data: the population's data.
        parameters: names of the shared parameters, whose steps are compared.
        attack: the membership metrics of the global model in a message.
        ranks: the processes; each scores the personal models of its own clients.
        best: the best global model so far, if personal models start from it; every rank has one.
        fewshot: the few-shot metrics of the global model in a message, where the test split has
            classes that nobody trains on; then nothing else is measured on the test split.
        overlap: evaluates while the next round trains; None evaluates before it.
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
        best: BestModel | None = None,
        fewshot: FewShotMetrics = None,
        overlap: Overlap | None = None,
    ) -> None:
        self.schedule, self.rounds, self.engine, self.data = schedule, rounds, engine, data
        self.parameters, self.attack, self.ranks = parameters, attack, ranks
        self.best, self.fewshot, self.overlap = best, fewshot, overlap
        (self.labels,) = scored_rows(data.test.targets.cpu())
        self._alignment: Alignment | None = None
        if schedule.personal != "off":
            self.scored_samples = ScoredSamples(
                data, schedule.personal_metrics, schedule.personal_samples
            )

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

    def state_dict(self) -> dict[str, Any]:
        """What later rounds depend on, for a checkpoint: the best global model, if it is kept."""
        return self.best.state_dict() if self.best else {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Inverse of ``state_dict``."""
        if self.best:
            self.best.load_state_dict(state)

    def scores_personal(self, round: int) -> bool:
        """Whether personal models are scored after this round."""
        if self.schedule.personal == "off":
            return False
        return round == self.rounds if self.best else self._due(round, self.schedule.personal_every)

    def __call__(self, message: Message) -> Scores:
        """The scores of round ``message.round``; ``message`` holds the new global model."""
        return self.start(message).result()

    def start(self, message: Message) -> "Future[Scores]":
        """As a call; with ``overlap`` the scores may come later, while others are trained."""
        aligned = self._alignment.metrics(message.weights) if self._alignment else {}
        if self.overlap and message.round < self.rounds:
            store = self.engine.resources.store if self.scores_personal(message.round) else None
            if store is None or self.overlap.keeps_models(store):
                work = partial(self._score, copied(message), aligned, self.overlap.fewshot)
                return self.overlap.submit(store, work)
        if self.overlap:
            self.overlap.wait()  # rounds are compared with the best one in order
        scores: Future[Scores] = Future()
        scores.set_result(self._score(message, aligned, self.fewshot, self.engine))
        return scores

    def _score(
        self, message: Message, aligned: dict[str, float], fewshot: FewShotMetrics, engine: Engine
    ) -> Scores:
        """The scores by this engine; ``aligned`` are the metrics of the clients' steps."""
        start = time.perf_counter()
        scores = Scores()
        if self._due(message.round, self.schedule.every):
            if self.ranks.is_first:
                self._score_global(engine, fewshot, message, scores)
            if self.best:
                self._compare(self.best, message, scores)
        if self.scores_personal(message.round):
            scores.metrics |= self._score_personal(engine, message)
        scores.metrics |= aligned
        attacks = self.schedule.membership.attack != "off" and message.round == self.rounds
        if self.ranks.is_first and attacks:
            scores.metrics |= self.attack(message)
        scores.metrics["time/eval_s"] = time.perf_counter() - start
        return scores

    def _due(self, round: int, every: int) -> bool:
        return round % every == 0 or round == self.rounds

    def _score_global(
        self, engine: Engine, fewshot: FewShotMetrics, message: Message, scores: Scores
    ) -> None:
        if fewshot:
            scores.metrics |= fewshot(message)
        else:
            self._score_on_test_split(engine, message, scores)
        if held_out := self._validate(engine, message):
            scores.metrics["validation/accuracy"] = held_out.correct.double().mean().item()
            scores.metrics["validation/loss"] = held_out.loss

    def _score_on_test_split(self, engine: Engine, message: Message, scores: Scores) -> None:
        predictions = engine.evaluate(message)
        if predictions is None:
            return
        classes = self.data.description.classes
        correct, total = per_class(predictions.correct, self.labels, len(classes))
        scores.metrics["global/accuracy"] = predictions.correct.double().mean().item()
        scores.metrics["global/loss"] = predictions.loss
        counts = self.data.counted_classes
        if self.data.description.per_token:
            counts = counts[:0]  # they are of sequences, not of tokens
        scores.metrics |= global_angles(predictions, counts)
        scores.per_class = {
            name: hits.item() / of.item()
            for name, hits, of in zip(classes, correct, total, strict=True)
            if of
        }

    def _validate(self, engine: Engine, message: Message) -> Predictions | None:
        """The global model on all clients' held-out samples; None if there are none."""
        if not len(self.data.validation):
            return None
        return engine.evaluate(message, self.data.validation)

    def _compare(self, best: BestModel, message: Message, scores: Scores) -> None:
        """Compare the model with the best one at every rank; the first rank has its scores."""
        score = self.ranks.from_first(lambda: _selection_score(scores.metrics))
        best.observe(score, message)

    def _score_personal(self, engine: Engine, message: Message) -> dict[str, float]:
        """Metrics of the personal models; with ``best``, also the accuracies without tuning."""
        if not (self.best and self.best.message):
            return self.measure_personal(engine, message)
        tuned = self.measure_personal(engine, self.best.message)
        untuned = self.measure_personal(engine, self.best.message, tune=False)
        return tuned | {f"{name}_untuned": v for name, v in untuned.items() if "accuracy" in name}

    def measure_personal(
        self, engine: Engine, message: Message, tune: bool = True
    ) -> dict[str, float]:
        """Metrics over all clients; see ``Engine.evaluate_personal``."""
        scored = engine.evaluate_personal(message, tune, self.scored_samples)
        found = list(self.ranks.gather_pairs(self._score_clients(scored)))
        metrics = personal_metrics([each.accuracies for _, each in found])
        metrics |= mean_over_clients([each.others for _, each in found])
        if self.scored_samples.is_estimate and found:
            correct = torch.stack([each.correct for _, each in found])
            metrics |= standard_errors(
                correct, self.scored_samples, self.data.class_counts[[c for c, _ in found]]
            )
        return metrics

    def _score_clients(
        self, scored: Iterator[tuple[int, Predictions]]
    ) -> Iterator[tuple[int, ClientScores]]:
        """(client, scores) of each of the models, computed for many of them at once."""
        while pairs := list(islice(scored, _AT_ONCE)):
            numbers, predictions = zip(*pairs, strict=True)
            yield from zip(numbers, self._score_group(numbers, predictions), strict=True)

    def _score_group(
        self, numbers: Sequence[int], predictions: Sequence[Predictions]
    ) -> list[ClientScores]:
        """The scores of these clients' personal models."""
        clients, samples = [self.data.clients[number] for number in numbers], self.scored_samples
        correct = torch.stack([each.correct for each in predictions])
        others: list[dict[str, float]] = [{} for _ in clients]
        if "angles" in samples.metrics:
            counts = torch.stack([client.class_counts for client in clients])
            others = local_angles(predictions, counts)
        of_heads = [each.head_correct for each in predictions if each.head_correct is not None]
        if of_heads:
            by_head = personal_accuracies(torch.stack(of_heads), samples, clients)
            for each, of_head in zip(others, by_head, strict=True):
                each |= {f"personal/accuracy_head_{kind}": v for kind, v in of_head.items()}
        for each, found in zip(others, predictions, strict=True):
            if len(found.validation):
                right = found.validation.double().mean().item()
                each["validation/personal_accuracy"] = right
        accuracies = personal_accuracies(correct, samples, clients)
        nothing = correct.new_zeros(len(clients), 0)  # a slice would keep, and send, all of it
        flags = correct[:, samples.share] if samples.is_estimate else nothing
        return [ClientScores(*each) for each in zip(accuracies, others, flags, strict=True)]


def _selection_score(metrics: Mapping[str, float]) -> float:
    """What global models are compared by: accuracy on held-out samples if there are any."""
    return metrics.get("validation/accuracy", metrics["global/accuracy"])
