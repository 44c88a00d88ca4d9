"""FedAH: each client's head starts from a learned mixture of the global and its last local head."""

from collections.abc import Sequence

from pydantic import PositiveFloat, PositiveInt

from fedexp.config.compatibility.declaration import needs_trained_head
from fedexp.config.schema import Epochs
from fedexp.contract import Loss, Network, Phase
from fedexp.personalization.fedala import FedALA
from fedexp.personalization.fedrep import head_then_body


class FedAH(FedALA):
    """FedALA's mixture for the head alone, and head and body train in turn (Zhou et al., 2024).

    All weights are shared. Training starts from the global body and from the head
    $local + W * (global - local)$, where local is the client's last local head. W is learned as in
    ``FedALA``, in one epoch over all samples in every round. Then the head is trained, then the
    body.

    The paper's text was not compared; this follows the authors' code. There W is learned for as
    many epochs as the head is trained, all clients mix in every round, whether they are drawn or
    not, and a client is scored with the mixture, before local training.

    Args:
        head_epochs: epochs of training the head, even if ``local.steps`` is set. The body is
            trained for ``local.epochs`` or ``local.steps``.
        rate: the step size for W.
        batch_size: largest number of samples in one step for W.
    """

    forbids = needs_trained_head("trains nothing that could be mixed")

    def __init__(self, head_epochs: Epochs, rate: PositiveFloat, batch_size: PositiveInt) -> None:
        super().__init__(
            top=1,
            percent=100,
            rate=rate,
            batch_size=batch_size,
            window=1,
            tolerance=0,
            max_epochs=1,
        )
        self.head_epochs = head_epochs

    def create(self, network: Network, loss: Loss) -> None:
        """Find the parameters of the head."""
        parameters = network.head.named_parameters(prefix="head")
        self._mixed = [name for name, value in parameters if value.requires_grad]

    def phases(self, epochs: float) -> Sequence[Phase]:
        """A phase for the head, then a phase for the body."""
        return head_then_body(self.head_epochs, epochs)
