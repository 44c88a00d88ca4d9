"""No head: the model's outputs are the logits."""

from torch import Tensor

from fedexp.core.sockets import Head
from fedexp.errors import InputError


class Identity(Head):
    """Logits = z, for a model that has a classifier of its own.

    Args:
        feature_dim: width of the model's outputs.
        num_classes: C, which must be the same.

    Raises:
        InputError: it is not.
    """

    takes_tokens = True

    def __init__(self, feature_dim: int, num_classes: int) -> None:
        super().__init__()
        if feature_dim != num_classes:
            raise InputError(
                f"head=identity: the model gives {feature_dim} outputs for {num_classes} classes; "
                "it must give one for each, or take head=linear"
            )

    def forward(self, z: Tensor) -> Tensor:
        """z itself."""
        return z
