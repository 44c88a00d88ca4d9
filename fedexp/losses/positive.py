"""FedAwS's loss: features approach the vector of their own class; no other class counts."""

from pydantic import PositiveFloat
from torch import Tensor

from fedexp.contract import Forward, Loss


class Positive(Loss):
    """The mean of max(0, margin - logit_y)^2, with y the label (FedAwS; Yu et al., ICML 2020).

    In FedAwS the logits are cosines (``head=spread_out`` with ``head.scale.init=1``). A client's
    step changes the vectors of its own classes only. Without a server that keeps the classes apart,
    all class vectors and all features may become one point.

    Args:
        margin: the logit from which on a sample has no loss.
    """

    def __init__(self, margin: PositiveFloat) -> None:
        super().__init__()
        self.margin = margin

    def forward(self, batch: Forward) -> Tensor:
        """The loss, a scalar."""
        own = batch.logits.gather(1, batch.targets.unsqueeze(1)).squeeze(1)
        return batch.mean((self.margin - own).clamp(min=0).square())
