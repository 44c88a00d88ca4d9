"""FedRep: a private head for each client, which is trained before the shared body."""

from collections.abc import Sequence

from fedexp.config.schema import Epochs
from fedexp.core.sockets import Phase
from fedexp.personalization.fedper import FedPer, GlobalModel


class FedRep(FedPer):
    """Each round trains the head alone, then the body alone (Collins et al., ICML 2021, Alg. 1).

    The body is the backbone. While the head is trained, the body is frozen and in eval mode, so its
    BatchNorm statistics do not change. While the body is trained, the head is frozen and in eval
    mode.

    Args:
        head_epochs: epochs of training the head, even if ``local.steps`` is set. The body is
            trained for ``local.epochs`` or ``local.steps``.
        global_model: whether a global model is evaluated; see ``FedPer``.
    """

    def __init__(self, head_epochs: Epochs, global_model: GlobalModel) -> None:
        super().__init__(global_model)
        self.head_epochs = head_epochs

    def phases(self, epochs: float) -> Sequence[Phase]:
        """A phase for the head, then a phase for the body."""
        return head_then_body(self.head_epochs, epochs)


def head_then_body(head_epochs: float, body_epochs: float) -> Sequence[Phase]:
    """A phase for the head, then a phase for the body; the other part is frozen in eval mode.

    The loss's own parameters are trained with the body.
    """
    return (
        Phase(head_epochs, trainable=("head.",), eval_mode=("backbone.",)),
        Phase(body_epochs, trainable=("backbone.", "loss."), eval_mode=("head.",)),
    )
