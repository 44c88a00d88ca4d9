"""FedLESAM: FedSAM with a direction from the last two global models that the client received."""

from fedexp.config.compatibility.traits import ACTS_ON_SHARED, OTHER_START
from fedexp.contract import Client, Memory, PartMessage, Setting, Tensors
from fedexp.gradients.sharpness_aware import SharpnessAware
from fedexp.regularizers.anchors import Anchors


class LocallyEstimated(SharpnessAware):
    """The gradient at $w + rho d / ||d||$, with $d = w_old - w^t$ (Fan et al., ICML 2024).

    w are the local weights before the step. w^t is the global model of this round, and w_old is the
    global model that the client received in its previous turn. The server moved from w_old to w^t
    to lower the global loss, so the loss increases along d. In a client's first round d is 0, and
    the gradient is computed at w. A step costs two gradients: this one, and the gradient at w for
    the logged loss. The paper's step costs one gradient. ``rho`` is the norm of the step from w
    along d.

    The definition of d agrees with the paper's abstract; the rest of the paper was not compared.
    The released code differs. It uses the server's last step for all clients, so w_old is the
    global model of the previous round, even if the client did not receive that model. And it moves
    all elements of the i-th parameter tensor by the same number, which it takes from the i-th
    element of the step as one long vector. We take this indexing for a mistake.
    """

    takes_only_merged = True
    traits = SharpnessAware.traits | {ACTS_ON_SHARED}
    discourages = {
        OTHER_START: "gradient=lesam: takes the difference of two models that a client received "
        "for a step of the global model, but this {other} may send the client other models"
    }

    def setup(self, setting: Setting) -> None:
        """Make a buffer for the direction d along which each shared parameter is moved."""
        self.ascent = Anchors(setting.model.shared_parameters)

    def begin(self, client: Client, message: PartMessage, memory: Memory) -> None:
        """Compute d, the client's previously received global model minus the one received now.

        The model received now is stored for the client's next turn.
        """
        received = {name: message.weights[name].clone() for name in self.ascent}
        self.ascent.fill({name: memory[name] - received[name] for name in memory})
        memory.update(received)

    def direction(self, parameters: Tensors, own: Tensors) -> Tensors:
        """For each shared parameter, the direction d of the step away from the local weights.

        Private parameters have no direction.
        """
        return {name: self.ascent[name] for name in parameters if name in self.ascent}
