"""Accuracy and loss of the global model on the samples that clients hold out for validation."""

import logging
from collections.abc import Mapping
from types import MappingProxyType

from pydantic import PositiveInt

from fedexp.config.compatibility.traits import Need
from fedexp.core.part import Setting
from fedexp.engines.resources import Resources
from fedexp.measures.measure import AfterRound, Better, Measure, Measured, Outline
from fedexp.measures.scoring.accuracies import per_class

BALANCED = "validation/balanced_accuracy"
LOGGER = logging.getLogger(__name__)


class Validation(Measure):
    """Accuracy (plain and balanced) and loss of the global model on held-out samples.

    They are measured on the samples that all clients together hold out (``data.validation``).
    Nothing is measured without such samples, or without a global model.
    ``validation/balanced_accuracy`` is the mean over the classes with held-out samples of the share
    classified correctly, for a test split with equally large classes beside training data with a
    long tail. It is absent if samples have no class labels.

    Args:
        every: rounds between measurements; the last round is always measured.
        first: earliest round that is measured, but for the last round.
    """

    needs = frozenset({Need.SIMULATION})
    headlines: Mapping[str, Better] = MappingProxyType(
        {"validation/accuracy": "higher", BALANCED: "higher", "validation/loss": "lower"}
    )

    def __init__(self, every: PositiveInt, first: PositiveInt) -> None:
        self.every, self.first = every, first

    def check(self, outline: Outline) -> None:
        """Remove the headlines if the run has no global model or no held-out samples."""
        if not outline.validates or Need.GLOBAL_MODEL not in outline.given:
            self.headlines = {}
            self.idle = "without data.validation and a global model"
            return
        self.reads = frozenset({"measure.global.every", "measure.global.first"})
        if Need.CLASS_LABELS not in outline.given:
            self.headlines = {n: better for n, better in self.headlines.items() if n != BALANCED}

    def setup(self, setting: Setting, resources: Resources) -> None:
        """Warn if clients train on classes that the balanced accuracy leaves out."""
        if BALANCED not in self.headlines:
            return
        data = resources.data
        held_out = data.validation.labels.bincount(minlength=data.description.num_classes).cpu()
        left_out = (held_out == 0) & (data.counted_classes.sum(dim=0) > 0)
        if names := [data.description.classes[c] for c in left_out.nonzero().flatten().tolist()]:
            LOGGER.warning(
                "%s leaves out classes without held-out samples: %s; use a larger data.validation",
                BALANCED,
                ", ".join(names),
            )

    def __call__(self, after: AfterRound) -> Measured:
        """The accuracies and the mean cross-entropy on the held-out samples."""
        predictions = after.validation_predictions()
        if predictions is None:
            return Measured()
        metrics = predictions.metrics("validation/{}")
        if BALANCED in self.headlines:
            labels, classes = after.data.validation.labels.cpu(), after.data.description.num_classes
            hits, totals = per_class(predictions.correct, labels, classes)
            metrics[BALANCED] = (hits / totals)[totals > 0].double().mean().item()
        return Measured(metrics)
