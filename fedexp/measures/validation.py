"""Accuracy and loss of the global model on the samples that clients hold out for validation."""

from collections.abc import Mapping
from types import MappingProxyType

from pydantic import PositiveInt

from fedexp.config.compatibility.traits import Need
from fedexp.measures.measure import AfterRound, Better, Measure, Measured, Outline
from fedexp.measures.scoring.accuracies import per_class

BALANCED = "validation/balanced_accuracy"


class Validation(Measure):
    """Accuracy (plain and balanced) and loss of the global model on held-out samples.

    They are measured on the samples that all clients together hold out (``data.validation``).
    Nothing is measured without such samples, or without a global model.
    ``validation/balanced_accuracy`` is the mean over the classes of the share classified correctly,
    for a test split with equally large classes beside training data with a long tail. It is absent
    if samples have no class labels.

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
