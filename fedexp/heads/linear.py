"""The ordinary classifier."""

from pydantic import PositiveInt
from torch import Tensor, nn

from fedexp.config.compatibility.traits import LINEAR_HEAD
from fedexp.core.sockets import Head


class Linear(Head):
    """A linear layer with the logits $W z + b$ of features z, trained and shared like any layer."""

    takes_tokens = True
    traits = frozenset({LINEAR_HEAD})

    def __init__(self, feature_dim: PositiveInt, num_classes: PositiveInt, bias: bool) -> None:
        super().__init__()
        self.linear = nn.Linear(feature_dim, num_classes, bias=bias)

    def forward(self, z: Tensor) -> Tensor:
        """Logits [B, C]."""
        logits: Tensor = self.linear(z)
        return logits

    def prototypes(self) -> Tensor:
        """The rows of the weight W [C, d]."""
        return self.linear.weight.detach()
