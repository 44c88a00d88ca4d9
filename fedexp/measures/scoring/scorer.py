"""Scores the model in the resident module, or the models in a ``Stack``, on test samples."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from fedexp.core.forward import Outputs, full_precision
from fedexp.core.token_rows import scored_rows
from fedexp.data.samples import Samples, Subset
from fedexp.engines.resources import Resources
from fedexp.engines.stack import Stack
from fedexp.measures.scoring.predictions import Predictions, Selection, score
from fedexp.measures.scoring.stacked_scores import StackedScores


class Scorer:
    """Scores the model in the resident module, or the models in a ``Stack``.

    The resident module is the one module into which each model is loaded. A ``Stack`` holds the
    weights of several models, so that they can be scored at once.

    Args:
        resources: the objects that the engine works with; the scorer does not use the store.
    """

    def __init__(self, resources: Resources) -> None:
        self._resources = resources
        self._stacked = StackedScores(resources, self._personal_outputs)

    def stack_size(self) -> int:
        """The number of personal models that are scored at once; the first call determines it."""
        return self._stacked.size

    @torch.inference_mode()
    def predict(self, personal: bool, samples: Samples | Subset | None = None) -> Predictions:
        """The predictions of the resident module on ``samples``, by default on the test split.

        ``personal`` tells whether the module holds a personal model or the global model.
        """
        samples = self._resources.data.test if samples is None else samples
        labels, z, logits = scored_rows(samples.targets, *self._outputs(personal, samples))
        return score(z, logits, labels, self._resources.module.head)

    @torch.inference_mode()
    def score_personal(self, client: int, selection: Selection | None) -> Predictions:
        """Predictions of the client's model, which the resident module holds, on test samples.

        ``selection`` has the test samples; None: the whole test split. The result also has the
        predictions on the client's validation samples.
        """
        test, module = self._resources.data.test, self._resources.module
        score_head = self._resources.personalization.class_vectors() is not None
        samples = test if selection is None else Subset(test, selection.index)
        if not len(samples):
            nothing = torch.zeros(len(test), dtype=torch.bool)
            found = Predictions(nothing, math.nan, head_correct=nothing if score_head else None)
        else:
            z, logits = self._outputs(personal=True, samples=samples)
            averaged = None if selection is None else selection.averaged
            found = score(z, logits, samples.labels, module.head, score_head, averaged)
            if selection is not None:
                found = found.within(len(test), selection.index)
        return replace(found, validation=self.validate_personal(client))

    def score_stack(
        self, stack: Stack, clients: Sequence[int], selections: Sequence[Selection | None]
    ) -> Iterator[tuple[int, Predictions]]:
        """Yield (client, predictions) for each row of the stack, which is one personal model.

        Args:
            stack: the personal models of ``clients``, in the same order.
            clients: the numbers of the clients.
            selections: the test samples for each model; None: the whole test split.
        """
        size = self.stack_size()
        for start in range(0, len(clients), size):
            rows = slice(start, start + size)
            part, group, chosen = stack.part(rows), clients[rows], selections[rows]
            if size == 1:
                part.load_row(0)
                yield group[0], self.score_personal(group[0], chosen[0])
                continue
            for client, found in zip(group, self._stacked(part, chosen), strict=True):
                yield client, replace(found, validation=self.validate_personal(client))

    def validate_personal(self, client: int) -> Tensor:
        """``Predictions.validation`` of the client's personal model in the resident module."""
        held_out = self._resources.data.clients[client].held_out
        if not len(held_out):
            return torch.zeros(0, dtype=torch.bool)
        return self.predict(personal=True, samples=held_out).correct

    def _outputs(self, personal: bool, samples: Samples | Subset) -> Outputs:
        """The features and logits that the resident module gives all ``samples`` (at least one)."""
        module = self._resources.module.eval()
        outputs = self._personal_outputs if personal else module.outputs
        found = []
        for inputs, _ in samples.batches(self._resources.eval_batch_size):
            with self._resources.fabric.autocast():
                found.append(outputs(inputs))
        return Outputs(*map(torch.cat, zip(*found, strict=True)))

    def _personal_outputs(self, inputs: Tensor) -> Outputs:
        """The features and personalized logits of ``inputs`` [B, ...], by the resident module."""
        module = self._resources.module
        z, logits = module.outputs(inputs)
        with full_precision(z):
            return Outputs(z, module.personalization.personalize(z, logits))
