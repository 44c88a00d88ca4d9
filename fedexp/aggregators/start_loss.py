"""The client half of aggregators that weight clients by the loss of the received model."""

from fedexp.contract import Client, Memory, Part, PartMessage, Tensors
from fedexp.core.training_loss import training_loss


class ReportsStartLoss(Part):
    """Sends ``loss``, the ``training_loss`` of the model that local training starts from."""

    def begin(self, client: Client, message: PartMessage, memory: Memory) -> None:
        """Compute the loss before training."""
        memory["loss"] = training_loss(client)

    def report(self, client: Client, memory: Memory) -> Tensors:
        """The loss that ``begin`` has computed, a float32 scalar."""
        return {"loss": memory.pop("loss")}
