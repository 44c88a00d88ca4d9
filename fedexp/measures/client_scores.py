"""The scores of the clients' personal models, and the base of the measures that use them."""

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Annotated, Literal

import torch
from pydantic import Field, PositiveInt

from fedexp.config.compatibility.traits import Need
from fedexp.core.part import Setting
from fedexp.data.federated import ClientData
from fedexp.engines.resources import Resources
from fedexp.errors import InputError
from fedexp.measures.angles import local_angles
from fedexp.measures.measure import AfterRound, Measure, Outline, every_nth
from fedexp.measures.scoring.accuracies import ClientScores, personal_accuracies
from fedexp.measures.scoring.predictions import Predictions
from fedexp.measures.scoring.scored_samples import NEED_ALL, ScoredSamples

Kinds = Annotated[
    list[Literal["uniform", "local", "test_split", "whole", "angles"]], Field(min_length=1)
]
"""Kinds of metrics of personal models; see ``personal_accuracies`` and ``local_angles``."""

_AT_ONCE = 64
"""Number of personal models whose accuracies and angles are computed at once; limits the memory."""


class PersonalMeasure(Measure):
    """A measure of the clients' personal models.

    Args:
        every: rounds between measurements; the last round is always measured.
        kinds: kinds of metrics; see ``personal_accuracies`` and ``local_angles``.
        of: the clients whose models are scored: all clients that have trained, or only the cohort.
        samples: number of test samples on which models are scored; None: the whole test split.

    Attributes:
        size: the argument ``samples``.
        samples: the test samples on which models are scored; set by ``setup``.
        last_only: whether models are scored after the last round only, because the method tunes
            them from the best global model.
        own_only: whether each model is scored only on the test samples of its own client.
    """

    needs = frozenset({Need.CLASS_LABELS, Need.TEST_CLASSES})

    def __init__(
        self,
        every: PositiveInt,
        kinds: Kinds,
        of: Literal["all", "cohort"],
        samples: PositiveInt | None,
    ) -> None:
        self.every, self.kinds, self.remembers, self.size = every, kinds, of, samples
        self.last_only = self.own_only = False

    def check(self, outline: Outline) -> None:
        """If ``outline.own_tasks``, score each model on its client's own test samples only.

        Kinds that need samples of other clients are then left out.

        Raises:
            InputError: models are scored on own samples only, and either ``samples`` is set or
                every kind needs samples of other clients.
        """
        self.own_only = outline.own_tasks
        if not self.own_only:
            return
        self.kinds = [kind for kind in self.kinds if kind not in NEED_ALL]
        if not self.kinds or self.size is not None:
            raise InputError(
                f"measure.{type(self).__name__.lower()}: with partition.shift or data=synthetic, a "
                "model is scored on its client's own test samples; samples should be null, and "
                "kinds uniform, local or test_split"
            )

    def setup(self, setting: Setting, resources: Resources) -> None:
        """Choose the test samples. Raises InputError if the test split has too few."""
        key = f"measure.{type(self).__name__.lower()}.samples"
        self.samples = ScoredSamples(resources.data, self.kinds, self.size, self.own_only, key)
        self.last_only = resources.personalization.tunes == "best"

    def due(self, round: int, rounds: int) -> bool:
        """True after the last round and, unless ``last_only``, after every ``every`` rounds."""
        return every_nth(round, rounds, rounds if self.last_only else self.every)

    def scores(self, after: AfterRound, tune: bool = True) -> dict[int, ClientScores]:
        """The ``client_scores`` of the clients in ``of``; every process must call this function.

        If ``of`` is "cohort", models of other clients, kept for other measures, are left out.
        """
        found = client_scores(after, self.samples, tune)
        if self.remembers != "cohort":
            return found
        turns = after.exchange.turns
        trained = {turn.client for turn in turns if turn.outcome in ("sent", "started")}
        return {client: each for client, each in found.items() if client in trained}


def client_scores(
    after: AfterRound, samples: ScoredSamples, tune: bool = True
) -> dict[int, ClientScores]:
    """Client -> scores of its personal model, for all processes' clients in ascending order.

    If another measure of this round has already computed all of ``samples.metrics``, its scores are
    reused; they may have further kinds of metrics. Every process must call this function.

    Args:
        after: the state of the federation after a round.
        samples: the test samples on which models are scored.
        tune: whether the models are tuned before scoring, if the method tunes models.
    """
    passes: dict[frozenset[str], dict[int, ClientScores]] = after.once(
        ("personal", samples.size, tune), dict
    )
    wanted = frozenset(samples.metrics)
    for metrics, found in passes.items():
        if wanted <= metrics:
            return found
    scored = after.scoring.client_scores(after.tuned_from, samples, tune)
    if scored is None:
        predicted = after.personal_predictions(samples, tune)
        scored = score_clients(after.data.clients, samples, predicted)
    passes[wanted] = dict(after.ranks.gather_pairs(scored))
    return passes[wanted]


def score_clients(
    data: Sequence[ClientData], samples: ScoredSamples, scored: Iterator[tuple[int, Predictions]]
) -> Iterator[tuple[int, ClientScores]]:
    """Yield (client, scores) of each personal model; scores of many models are computed at once.

    Args:
        data: client -> its data.
        samples: the test samples on which the models were scored.
        scored: (client, predictions) of the personal models.
    """
    while pairs := list(islice(scored, _AT_ONCE)):
        numbers, predictions = zip(*pairs, strict=True)
        clients = [data[number] for number in numbers]
        yield from zip(numbers, _score_group(clients, samples, predictions), strict=True)


def _score_group(
    clients: Sequence[ClientData], samples: ScoredSamples, predictions: Sequence[Predictions]
) -> list[ClientScores]:
    """The scores of these clients' personal models."""
    correct = torch.stack([each.correct for each in predictions])
    others: list[dict[str, float]] = [{} for _ in clients]
    if "angles" in samples.metrics:
        others = local_angles(predictions, torch.stack([each.class_counts for each in clients]))
    of_heads = [each.head_correct for each in predictions if each.head_correct is not None]
    if of_heads:
        by_head = personal_accuracies(torch.stack(of_heads), samples, clients)
        for each, of_head in zip(others, by_head, strict=True):
            each |= {f"personal/accuracy_head_{kind}": v for kind, v in of_head.items()}
    for each, found in zip(others, predictions, strict=True):
        if len(found.validation):
            each["validation/personal_accuracy"] = found.validation.double().mean().item()
    accuracies = personal_accuracies(correct, samples, clients)
    nothing = correct.new_zeros(len(clients), 0)  # a slice would keep ``correct`` in memory
    flags = correct[:, samples.share] if samples.is_estimate else nothing
    return [ClientScores(*each) for each in zip(accuracies, others, flags, strict=True)]
