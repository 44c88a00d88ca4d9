"""Loads and scores the global model and personal models."""

import math
from collections.abc import Iterator, Mapping, Sequence
from copy import copy
from dataclasses import replace
from typing import cast

import torch
from torch import Tensor

from fedexp.core.forward import Outputs, full_precision
from fedexp.core.messages import Message
from fedexp.core.token_rows import scored_rows
from fedexp.data.federated import ClientData
from fedexp.data.samples import Samples, Subset
from fedexp.engines.base import Engine
from fedexp.engines.resources import Resources
from fedexp.engines.stack import Stack
from fedexp.measures.scoring.accuracies import ClientScores
from fedexp.measures.scoring.predictions import Predictions, Select, Selection, score
from fedexp.measures.scoring.scored_samples import ScoredSamples
from fedexp.measures.scoring.stacked_scores import StackedScores
from fedexp.state.client_store import ClientStore


class Scoring:
    """Loads models into an engine's resident module and scores them.

    Args:
        engine: tunes personal models if the method does; its resident module runs the models.
    """

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._stacked = StackedScores(engine.resources, self._personal_outputs)

    @property
    def resources(self) -> Resources:
        """The resident module, the data, the parts and the clients' states."""
        return self.engine.resources

    def score_global(
        self, message: Message, samples: Samples | Subset | None = None
    ) -> Predictions | None:
        """The global model's predictions on ``samples``, by default on the test split.

        None if the method has no global model.
        """
        if not self.resources.personalization.has_global:
            return None
        self.resources.load_global(message)
        return self._predict(personal=False, samples=samples)

    def of_newcomers(self, clients: Mapping[int, ClientData]) -> "Scoring":
        """A ``Scoring`` for clients that have never trained and have no stored state.

        ``clients`` maps a client to its data. The new object can score only these clients. They
        have no stored model, so ``score_personal`` needs their numbers as ``of``, and works only
        if personal models are tuned from a global model.
        """
        engine, data = copy(self.engine), copy(self.resources.data)
        data.clients = cast(Sequence[ClientData], clients)
        engine.resources = replace(self.resources, data=data, store=ClientStore("off", math.inf))
        return Scoring(engine)

    def client_scores(
        self, message: Message, samples: ScoredSamples, tune: bool
    ) -> Iterator[tuple[int, ClientScores]] | None:
        """Yield (client, scores) of personal models on other machines.

        This class returns None, because all its personal models are on this machine.

        Args:
            message: the global model after a round.
            samples: the test samples on which models are scored.
            tune: whether the models are tuned before scoring, if the method tunes models.
        """
        return None

    def score_personal(
        self,
        message: Message,
        tune: bool = True,
        select: Select = lambda client: None,
        of: Sequence[int] | None = None,
    ) -> Iterator[tuple[int, Predictions]]:
        """Yield (client, predictions of its personal model on the test split), in any order.

        If clients have validation samples, each model is also scored on its client's validation
        samples. While a client's predictions are yielded, the resident module holds its model.

        Args:
            message: the global model after a round.
            tune: whether the models are tuned before scoring, if the method tunes models; if False,
                the models before tuning are scored.
            select: client -> the samples of the test split for its model; by default all samples.
            of: the clients; None: all clients with a personal model.
        """
        resources = self.resources
        resources.load_global(message)  # so that the parts get the round's message

        def selected(client: int) -> Selection | None:
            return select(resources.data.clients[client])

        clients = resources.store.clients_with_model if of is None else list(of)
        size = self._stacked.size
        if size > 1:
            clients.sort(key=lambda client: _length(selected(client)))  # for little padding
        for group, stack in self._stacks(clients, size, message, tune):
            yield from self._score_stack(stack, group, list(map(selected, group)))

    def _stacks(
        self, clients: Sequence[int], size: int, message: Message, tune: bool
    ) -> Iterator[tuple[Sequence[int], Stack]]:
        """Yield groups of at most ``size`` clients and a ``Stack`` of each group's models."""
        engine, tuning = self.engine, self.resources.personalization.tuning()
        if tuning and tune:
            yield from engine.tuned(clients, size, message)
            return

        def load(client: int) -> None:
            if tuning:
                engine.begin_tuning(client, message)
            else:
                self._load_kept(client, message)

        for start in range(0, len(clients), size):
            group = clients[start : start + size]
            yield group, engine.begin_all(group, load, f"after round {message.round}")

    def _load_kept(self, client: int, message: Message) -> None:
        """Load the stored personal model of ``client`` into the resident module."""
        resources = self.resources
        resources.module.begin_turn(resources.data.clients[client], message)
        resources.module.load(resources.store.model(client))

    def _score_stack(
        self, stack: Stack, clients: Sequence[int], selections: Sequence[Selection | None]
    ) -> Iterator[tuple[int, Predictions]]:
        """Yield (client, predictions) for each row of the stack, which is one personal model."""
        size = self._stacked.size
        for start in range(0, len(clients), size):
            rows = slice(start, start + size)
            part, group, chosen = stack.part(rows), clients[rows], selections[rows]
            if size == 1:
                part.load_row(0)
                scored = iter([self._score_one(chosen[0])])
            else:
                scored = self._stacked(part, chosen)
            for client, found in zip(group, scored, strict=True):
                yield client, replace(found, validation=self.validate_personal(client))

    @torch.inference_mode()
    def _score_one(self, selection: Selection | None) -> Predictions:
        """The predictions of the personal model in the resident module on test samples.

        ``selection`` has the test samples; None: the whole test split.
        """
        test, resources = self.resources.data.test, self.resources
        score_head = resources.personalization.class_vectors() is not None
        samples = test if selection is None else Subset(test, selection.index)
        if not len(samples):
            nothing = torch.zeros(len(test), dtype=torch.bool)
            return Predictions(nothing, math.nan, head_correct=nothing if score_head else None)
        z, logits = self._outputs(personal=True, samples=samples)
        averaged = None if selection is None else selection.averaged
        found = score(z, logits, samples.labels, resources.module.head, score_head, averaged)
        return found if selection is None else found.within(len(test), selection.index)

    def validate_personal(self, client: int) -> Tensor:
        """``Predictions.validation`` of the client's personal model in the resident module."""
        held_out = self.resources.data.clients[client].held_out
        if not len(held_out):
            return torch.zeros(0, dtype=torch.bool)
        return self._predict(personal=True, samples=held_out).correct

    @torch.inference_mode()
    def _predict(self, personal: bool, samples: Samples | Subset | None) -> Predictions:
        """The predictions of the resident module on ``samples``; None: the test split.

        ``personal`` tells whether the module holds a personal model or the global model.
        """
        samples = self.resources.data.test if samples is None else samples
        labels, z, logits = scored_rows(samples.targets, *self._outputs(personal, samples))
        return score(z, logits, labels, self.resources.module.head)

    def _outputs(self, personal: bool, samples: Samples | Subset) -> Outputs:
        """The features and logits that the resident module gives all ``samples`` (at least one)."""
        module = self.resources.module.eval()
        outputs = self._personal_outputs if personal else module.outputs
        found = []
        for inputs, _ in samples.batches(self.resources.eval_batch_size):
            with self.resources.fabric.autocast():
                found.append(outputs(inputs))
        return Outputs(*map(torch.cat, zip(*found, strict=True)))

    def _personal_outputs(self, inputs: Tensor) -> Outputs:
        """The features and personalized logits of ``inputs`` [B, ...], by the resident module."""
        module = self.resources.module
        z, logits = module.outputs(inputs)
        with full_precision(z):
            return Outputs(z, module.personalization.personalize(z, logits))


def _length(selection: Selection | None) -> int:
    return 0 if selection is None else len(selection.index)
