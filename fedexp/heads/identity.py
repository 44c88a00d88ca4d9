"""No head: the model's outputs are the logits."""

from torch import Tensor

from fedexp.core.sockets import Head
from fedexp.errors import InputError


class Identity(Head):
    """For a model with its own classifier: the model's outputs z are the logits.

    Args:
        feature_dim: width of the model's outputs.
        num_classes: C, equal to ``feature_dim``.

    Raises:
        InputError: ``feature_dim`` and ``num_classes`` differ.
    """

    takes_tokens = True

    def __init__(self, feature_dim: int, num_classes: int) -> None:
        super().__init__()
        if feature_dim != num_classes:
            raise InputError(
                f"head=identity: the model gives {feature_dim} outputs for {num_classes} classes; "
                "use a model with one output for each class, or head=linear"
            )

    def forward(self, z: Tensor) -> Tensor:
        """Return the model's outputs z [B, C] as logits."""
        return z
