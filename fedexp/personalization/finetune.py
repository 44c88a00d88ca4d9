"""Fine-tuning: a client tunes a global model before its personal model is evaluated."""

from collections.abc import Sequence
from typing import Literal

from fedexp.config.schema import Epochs
from fedexp.core.sockets import Personalization, Phase


class Finetune(Personalization):
    """A personal model is a global model after some epochs on the client's data.

    The tuning does not change the shared model. Tuning is like local training in the next round,
    with the same loss, optimizer, learning rate and batches. But it uses the plain gradient, and no
    regularizer, which would pull the personal model to the global model.

    Args:
        epochs: epochs of tuning the whole model.
        start: the model to tune. "present" is the global model of the evaluated round. "best" is
            the global model of the round with the highest ``validation/accuracy``, or
            ``global/accuracy`` if there are no validation samples. The best model is tuned only
            after the last round, as by Fan et al., NeurIPS 2023, for methods with a global model.
    """

    reads = frozenset({"local.epochs"})

    def __init__(self, epochs: Epochs, start: Literal["present", "best"]) -> None:
        super().__init__()
        self.epochs = epochs
        self.tunes = "best" if start == "best" else "global"

    def tuning(self) -> Sequence[Phase]:
        """One phase that trains the whole model."""
        return (Phase(self.epochs),)
