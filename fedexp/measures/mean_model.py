"""Scores the mean of the cohort's models, for methods whose global model is another model."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from fedexp.aggregators.average import Average
from fedexp.config.compatibility.traits import Need
from fedexp.core.messages import Message, Update
from fedexp.core.part import Setting
from fedexp.core.reducible import Contribution
from fedexp.engines.resources import Resources
from fedexp.measures.measure import AfterRound, Better, EveryNth, Measured


class MeanModel(EveryNth):
    """``global/accuracy_mean_model`` and ``global/loss_mean_model`` on the test split.

    The scored model is the unweighted mean of the weights that the cohort sent. In FedDyn and FedDC
    the global model is this mean plus a mean drift. The released code of both papers scores the
    mean alone, while ``global/accuracy`` scores the global model. In a round without updates
    nothing is measured. The sum of the weights takes the memory of one model in float64.

    Args:
        every: rounds between measurements; the last round is always measured.
    """

    headlines: Mapping[str, Better] = MappingProxyType({"global/accuracy_mean_model": "higher"})
    directions: Mapping[str, Better] = MappingProxyType({"global/loss_mean_model": "lower"})
    needs = frozenset({Need.GLOBAL_MODEL, Need.TEST_CLASSES})

    def setup(self, setting: Setting, resources: Resources) -> None:
        """Store the number of rounds."""
        self._rounds = setting.rounds

    def begin_round(self, message: Message) -> None:
        """Start a new mean for this round."""
        self._start, self._mean = message, Average("uniform")

    def observe(self, update: Update) -> None:
        """Add a client's weights to the mean, if the measure is due after this round."""
        if self.due(self._start.round, self._rounds):
            self._mean.add(update, self._start.weights)

    def contribution(self) -> Contribution:
        """The sums of the weights in the updates of this process."""
        return self._mean.contribution()

    def set_reduced(self, sums: Mapping[str, Any], items: Sequence[Any]) -> None:
        """Replace this process's sums by the sums over all processes."""
        self._mean.set_reduced(dict(sums), items)

    def __call__(self, after: AfterRound) -> Measured:
        """Accuracy and loss of the mean model."""
        mean = self._mean.merge(self._start.weights)
        if mean is self._start.weights:
            return Measured()
        found = after.predictions_with(mean)
        return Measured(found.metrics("global/{}_mean_model") if found else {})
