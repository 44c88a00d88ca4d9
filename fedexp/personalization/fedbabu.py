"""FedBABU: clients train only a shared body, and tune the whole model before evaluation."""

from collections.abc import Sequence
from typing import Literal

from fedexp.config.schema import Epochs
from fedexp.core.sockets import Personalization, Phase


class FedBABU(Personalization):
    """All clients have the same random head, frozen until tuning (Oh et al., ICLR 2022).

    So the head is never sent. The global model is the averaged body (the backbone) with this head.

    Args:
        tuning_epochs: epochs of tuning the whole model on the client's data.
        tune_from: the model to tune. "global" is the global model of the evaluated round, as in the
            paper. "local" is the client's latest local model.
    """

    private_names = ("head.",)

    def __init__(self, tuning_epochs: Epochs, tune_from: Literal["global", "local"]) -> None:
        super().__init__()
        self.tuning_epochs = tuning_epochs
        self.tunes = tune_from

    def phases(self, epochs: float) -> Sequence[Phase]:
        """One phase that trains the body (the backbone), and the loss's own parameters."""
        return (Phase(epochs, trainable=("backbone.", "loss."), eval_mode=("head.",)),)

    def tuning(self) -> Sequence[Phase]:
        """One phase that trains the whole model."""
        return (Phase(self.tuning_epochs),)
