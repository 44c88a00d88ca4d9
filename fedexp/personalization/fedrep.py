"""FedRep: a head for each client, fitted to the common body before the body learns."""

from collections.abc import Sequence

from fedexp.config.schema import Epochs
from fedexp.core.sockets import Phase
from fedexp.personalization.fedper import FedPer


class FedRep(FedPer):
    """In a round first the head alone, then the body alone (Collins et al., ICML 2021, Alg. 1).

    What does not train is in eval mode, so that its BatchNorm statistics do not move either.

    Args:
        head_epochs: of the head; the body has ``local.epochs``.
    """

    def __init__(self, head_epochs: Epochs) -> None:
        super().__init__()
        self.head_epochs = head_epochs

    def phases(self, epochs: int) -> Sequence[Phase]:
        """Head, then body."""
        return (
            Phase(self.head_epochs, trainable=("head.",), eval_mode=("backbone.",)),
            Phase(epochs, trainable=("backbone.",), eval_mode=("head.",)),
        )
