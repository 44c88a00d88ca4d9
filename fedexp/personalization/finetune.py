"""Fine-tuning: the global model goes on training at each client before it is scored there."""

from collections.abc import Sequence

from fedexp.config.schema import Epochs
from fedexp.core.sockets import Personalization, Phase


class Finetune(Personalization):
    """A personal model is the present global model after some more epochs on the client's data.

    The federation itself is what it is without. With the loss and the optimizer of the round, but
    no regularizer: that would tie the model to the one it is to leave.

    Args:
        epochs: of the whole model.
    """

    def __init__(self, epochs: Epochs) -> None:
        super().__init__()
        self.epochs = epochs

    def tuning(self) -> Sequence[Phase]:
        """Everything."""
        return (Phase(self.epochs),)
