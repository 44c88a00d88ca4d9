"""FedETF: the classifier is fixed in local training; a personal model tunes it, too."""

from collections.abc import Sequence

from pydantic import NonNegativeInt

from fedexp.config.compatibility.traits import FIXED_CLASSIFIER, TUNED_CLASSIFIER
from fedexp.config.schema import Epochs
from fedexp.core.sockets import Personalization, Phase

_CLASSIFIER = "head.weight"
_PROJECTION = "head.projection."


class FedETF(Personalization):
    """The clients together train all weights except the classifier V (Li et al., ICCV 2023).

    All clients have the same V; V is never sent. Before a personal evaluation a client tunes the
    global model. It first trains all weights except V. Then ``cycles`` cycles follow; each of them
    trains V alone, then the projection alone.

    V is tuned by SGD without momentum and weight decay, as in the released code. All phases have
    the learning rate of local training; the released code uses 0.1 for V and 0.05 for the
    projection. The released code uses the balanced loss in the first phase and cross-entropy in the
    other phases. Here all phases use the method's loss, see ``LogitAdjustment``.

    Args:
        epochs: epochs of the first phase.
        cycles: how many times V and then the projection are tuned.
        classifier_epochs: epochs of training V in each cycle.
        projection_epochs: epochs of training the projection in each cycle.
    """

    unread_if = {"classifier_epochs": {"cycles": (0,)}, "projection_epochs": {"cycles": (0,)}}
    private_names = (_CLASSIFIER,)
    reads = frozenset({"local.epochs"})
    traits = frozenset({FIXED_CLASSIFIER})
    needs = {TUNED_CLASSIFIER: "personalization=fedetf: needs head=projected_etf head.tuned=true"}

    def __init__(
        self,
        epochs: Epochs,
        cycles: NonNegativeInt,
        classifier_epochs: Epochs,
        projection_epochs: Epochs,
    ) -> None:
        super().__init__()
        self.epochs, self.cycles = epochs, cycles
        self.classifier_epochs, self.projection_epochs = classifier_epochs, projection_epochs

    def phases(self, epochs: float) -> Sequence[Phase]:
        """One phase that trains all weights except the classifier V."""
        return (Phase(epochs, trainable=("backbone.", "loss.", _PROJECTION, "head.scale")),)

    def tuning(self) -> Sequence[Phase]:
        """First a phase that trains all weights except V, then the two phases of each cycle.

        In a cycle the first phase trains V, and the second phase trains the projection.
        """
        turn = (
            Phase(self.classifier_epochs, trainable=(_CLASSIFIER,), plain_sgd=True),
            Phase(self.projection_epochs, trainable=(_PROJECTION,)),
        )
        return (*self.phases(self.epochs), *(self.cycles * turn))
