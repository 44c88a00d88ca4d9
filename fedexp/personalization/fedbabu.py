"""FedBABU: only the body is trained in the federation; heads are tuned before evaluation."""

from collections.abc import Sequence
from typing import Literal

from fedexp.config.schema import Epochs
from fedexp.core.sockets import Personalization, Phase


class FedBABU(Personalization):
    """The random head is the same for all and frozen until a model is tuned (Oh et al., ICLR 2022).

    So the head is never sent, and with it the body is the global model.

    Args:
        tuning_epochs: epochs of tuning the whole model on the client's data.
        tune_from: the model that is tuned. "global" is the global model of the round in which it is
            evaluated, as in the paper; "local" is the client's latest local model.
    """

    def __init__(self, tuning_epochs: Epochs, tune_from: Literal["global", "local"]) -> None:
        super().__init__()
        self.tuning_epochs = tuning_epochs
        self.tunes_local = tune_from == "local"

    def shared(self, name: str) -> bool:
        """All but the head."""
        return not name.startswith("head.")

    def phases(self, epochs: int) -> Sequence[Phase]:
        """The body."""
        return (Phase(epochs, trainable=("backbone.",), eval_mode=("head.",)),)

    def tuning(self) -> Sequence[Phase]:
        """The whole model."""
        return (Phase(self.tuning_epochs),)
