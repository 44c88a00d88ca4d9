"""pFedMe: the personal model theta minimizes the client's loss plus a pull to the shared model."""

from collections.abc import Sequence

from fedexp.config.compatibility.traits import KEEPS_PROXIMAL_POINTS, PROXIMAL_POINTS
from fedexp.contract import Client, Memory, PartMessage, Phase
from fedexp.personalization.own_model import OwnModel


class PFedMe(OwnModel):
    """The personal model is theta of the last local step (Dinh et al., NeurIPS 2020, Alg. 1).

    theta minimizes the client's loss plus a pull to the shared model. ``gradient=moreau`` computes
    theta in every local step. As in the paper, local steps are plain SGD with the learning rate of
    the local optimizer, without momentum, weight decay and clipping.

    In the authors' code all clients train in every round, and the server averages the models of the
    cohort. Here only the cohort trains, so theta of another client is from an earlier round. In the
    authors' code the client's local w overwrites theta before the personal model is scored, so the
    personal accuracy is that of the local w. Here it is that of theta.
    """

    traits = OwnModel.traits | {KEEPS_PROXIMAL_POINTS}
    needs = {
        PROXIMAL_POINTS: "personalization=pfedme: trains nothing by itself; use gradient=moreau"
    }

    def phases(self, epochs: float) -> Sequence[Phase]:
        """One phase of plain SGD."""
        return (Phase(epochs, plain_sgd=True, clipped=False),)

    def begin(self, client: Client, message: PartMessage, memory: Memory) -> None:
        """Start the personal model theta from the global model."""
        self.start_from(client, message.weights)
