"""FedBABU: only the body is trained in the federation; heads are tuned at the end."""

from collections.abc import Sequence

from fedexp.config.schema import Epochs
from fedexp.core.sockets import Personalization, Phase


class FedBABU(Personalization):
    """The random head is never trained until the model is tuned (Oh et al., ICLR 2022).

    As everybody has the same head from the start, it does not travel, and with it the body is the
    global model. Personal models are tuned from the global model of the round in which they are
    scored: in the last round from the final one.

    Args:
        tuning_epochs: of the whole model, on the client's data.
    """

    def __init__(self, tuning_epochs: Epochs) -> None:
        super().__init__()
        self.tuning_epochs = tuning_epochs

    def shared(self, name: str) -> bool:
        """All but the head, which is everybody's already."""
        return not name.startswith("head.")

    def phases(self, epochs: int) -> Sequence[Phase]:
        """The body."""
        return (Phase(epochs, trainable=("backbone.",), eval_mode=("head.",)),)

    def tuning(self) -> Sequence[Phase]:
        """Everything."""
        return (Phase(self.tuning_epochs),)
