"""Accuracy and loss of the global model on the test split."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Annotated

from pydantic import Field, PositiveInt

from fedexp.config.compatibility.traits import Need
from fedexp.errors import InputError
from fedexp.measures.measure import AfterRound, Better, Measure, Measured, Outline

Accuracy = Annotated[float, Field(gt=0, le=1)]


class GlobalModel(Measure):
    """``global/accuracy`` and ``global/loss`` on the test split, and the accuracy of each class.

    The loss is the mean cross-entropy. Nothing is measured if the method has no global model, or if
    no client trains on the classes of the test split.

    Args:
        every: rounds between measurements; the last round is always measured.
        first: earliest round that is measured, but for the last round.
        targets: accuracies; for each of them, the summary has the first round that reached it.
    """

    headlines: Mapping[str, Better] = MappingProxyType(
        {"global/accuracy": "higher", "global/loss": "lower"}
    )

    def __init__(self, every: PositiveInt, first: PositiveInt, targets: list[Accuracy]) -> None:
        self.every, self.first, self.targets = every, first, targets

    def check(self, outline: Outline) -> None:
        """Remove the headlines if there is no global model, or no test split that it can classify.

        Raises:
            InputError: ``targets`` is set, although there is no such model or test split.
        """
        lacking = sorted({Need.GLOBAL_MODEL, Need.TEST_CLASSES} - outline.given)
        if lacking and self.targets:
            raise InputError(
                f"measure.global.targets={self.targets}: needs {lacking[0]}, and there is none"
            )
        if lacking:
            self.headlines = {}
            self.idle = f"without {lacking[0]}"

    def __call__(self, after: AfterRound) -> Measured:
        """The accuracy, the loss, and the accuracy of each class."""
        unseen = after.data.description.unseen_classes
        predictions = None if unseen else after.global_predictions()
        if predictions is None:
            return Measured()
        return Measured(predictions.metrics("global/{}"), per_class=after.class_accuracies())
