"""Accuracy and loss of the global model on the samples that clients hold out for validation."""

from collections.abc import Mapping
from types import MappingProxyType

from fedexp.config.compatibility.traits import Need
from fedexp.measures.measure import AfterRound, Better, EveryNth, Measured, Outline


class Validation(EveryNth):
    """``validation/accuracy`` and ``validation/loss`` of the global model.

    Both are measured on the samples that all clients together hold out (``data.validation``).
    Nothing is measured without such samples, or without a global model.

    Args:
        every: rounds between measurements; the last round is always measured.
    """

    headlines: Mapping[str, Better] = MappingProxyType(
        {"validation/accuracy": "higher", "validation/loss": "lower"}
    )

    def check(self, outline: Outline) -> None:
        """Remove the headlines if the run has no global model or no held-out samples."""
        if not outline.validates or Need.GLOBAL_MODEL not in outline.given:
            self.headlines = {}
            self.idle = "without data.validation and a global model"

    def __call__(self, after: AfterRound) -> Measured:
        """Accuracy and mean cross-entropy on the held-out samples."""
        predictions = after.validation_predictions()
        return Measured(predictions.metrics("validation/{}") if predictions else {})
