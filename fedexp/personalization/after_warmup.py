"""FedAvg in the first rounds; then each client gets a mixture of the clients' own models."""

from collections.abc import Sequence

from fedexp.config.compatibility.traits import (
    ADDS_DRIFT,
    NOT_THE_MEAN,
    OTHER_WEIGHTS,
    READS_ROUNDS,
)
from fedexp.config.schema import Share
from fedexp.contract import PartUpdate, Setting, Tensors
from fedexp.personalization.client_models import MixesModels
from fedexp.rounding import rounded_down


class AfterWarmup(MixesModels):
    """In the warm-up the shared weights are averaged; afterwards clients have models of their own.

    The server stores no model in the warm-up. Afterwards the global model stays as it is. Rounds
    that leave the global weights as they were do not count as warm-up.

    Args:
        warmup: the share of the run's rounds that are warm-up; their number is rounded down. A run
            that goes on with more rounds keeps the number.
    """

    traits = MixesModels.traits | {NOT_THE_MEAN, READS_ROUNDS}
    forbids = {
        ADDS_DRIFT: "{other}: would move the global weights of the warm-up, which stay as they are "
        "afterwards; with this personalization use another regularizer"
    }
    discourages = dict.fromkeys(
        (NOT_THE_MEAN, OTHER_WEIGHTS),
        "{other}: acts in the warm-up alone; afterwards the server mixes the models as clients "
        "sent them; with this personalization take aggregator=sample_weighted or uniform",
    )
    saved: tuple[str, ...] = ("steps", "warmup_steps")

    def __init__(self, warmup: Share) -> None:
        super().__init__()
        self.warmup = warmup
        self.steps = 0

    def setup(self, setting: Setting) -> None:
        """Make the store of the clients' models, and compute the number of warm-up rounds."""
        super().setup(setting)
        self.warmup_steps = rounded_down(self.warmup, setting.rounds)

    @property
    def _is_warmup(self) -> bool:
        return self.steps < self.warmup_steps

    def extract(self, weights: Tensors, current: Tensors) -> Tensors:
        """All weights that the client sent, for ``aggregate``; nothing in the warm-up."""
        return {} if self._is_warmup else super().extract(weights, current)

    def aggregate(self, updates: Sequence[PartUpdate]) -> None:
        """Store the cohort's models, after the warm-up."""
        if not self._is_warmup:
            super().aggregate(updates)

    def correct(self, current: Tensors, merged: Tensors, sums: Tensors, clients: int) -> Tensors:
        """The average in the warm-up; afterwards the global weights stay."""
        following = merged if self._is_warmup else current
        self.steps += 1
        return following
