"""Fine-tuning: the global model is trained further on a client's data before it is scored there."""

from collections.abc import Sequence

from fedexp.config.schema import Epochs
from fedexp.core.sockets import Personalization, Phase


class Finetune(Personalization):
    """A personal model is the present global model after some epochs on the client's data.

    The federation is not affected. Tuning uses the loss and the optimizer of the round, but no
    regularizer, which would tie the model to the global one.

    Args:
        epochs: epochs of the whole model.
    """

    def __init__(self, epochs: Epochs) -> None:
        super().__init__()
        self.epochs = epochs

    def tuning(self) -> Sequence[Phase]:
        """The whole model."""
        return (Phase(self.epochs),)
