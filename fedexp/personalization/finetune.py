"""Fine-tuning: a global model is trained further on a client's data before it is scored there."""

from collections.abc import Sequence
from typing import Literal

from fedexp.config.schema import Epochs
from fedexp.core.sockets import Personalization, Phase


class Finetune(Personalization):
    """A personal model is a global model after some epochs on the client's data.

    The federation is not affected. A client is tuned as it would train that model in the next round
    (loss, optimizer, learning rate, batches), but without a regularizer, which would tie the model
    to the global one.

    Args:
        epochs: epochs of the whole model.
        start: the model that is tuned. "present" is the global model of the round in which it is
            evaluated. "best" is that of the round with the highest ``validation/accuracy``, or
            ``global/accuracy`` if no samples are held out for validation; it is tuned after the
            last round only (Fan et al., NeurIPS 2023, for methods with a global model).
    """

    def __init__(self, epochs: Epochs, start: Literal["present", "best"]) -> None:
        super().__init__()
        self.epochs = epochs
        self.tunes_best = start == "best"

    def tuning(self) -> Sequence[Phase]:
        """The whole model."""
        return (Phase(self.epochs),)
