"""A trained classifier with cosine logits."""

from pydantic import PositiveInt
from torch import Tensor, nn
from torch.nn.functional import normalize

from fedexp.core.sockets import Head
from fedexp.heads.sphere import Scale, cosine_logits, random_directions


class Cosine(Head):
    """A classifier with the logits $s * cos(W_c, z)$ for class c.

    z are the features, and W_c is the row of class c in the weight W. W is trained and shared. If
    ``scale.trainable`` is true, the scale s is trained and shared, too.
    """

    def __init__(self, feature_dim: PositiveInt, num_classes: PositiveInt, scale: Scale) -> None:
        super().__init__()
        self.weight = nn.Parameter(random_directions(num_classes, feature_dim))
        self.scale = scale.build()

    def forward(self, z: Tensor) -> Tensor:
        """Logits [B, C]."""
        return cosine_logits(z, normalize(self.weight), self.scale)

    def normalize(self, z: Tensor) -> Tensor:
        """The features [B, d], scaled to unit length."""
        return normalize(z, eps=1e-12)

    def prototypes(self) -> Tensor:
        """The rows of the weight W [C, d]."""
        return self.weight.detach()
