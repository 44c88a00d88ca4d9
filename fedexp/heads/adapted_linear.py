"""FedGELA's local adaptation on a trained classifier."""

from pydantic import PositiveInt
from torch import Tensor, nn

from fedexp.heads.adaptation import AdaptedHead, Form, Missing, Normalization


class AdaptedLinear(AdaptedHead):
    """logits_c = Phi_k(c) W_c . z with W trained and shared (Fan et al., NeurIPS 2023, Table 4).

    The row of that table with local adaptation (LA) and without the simplex: clients train with
    their own Phi, which their personal models keep; the global model has Phi = 1. z is as it is,
    and there is no bias. A class with Phi_k(c) = 0 gives W_c no gradient at client k.

    Args:
        feature_dim: d.
        num_classes: C.
        phi: as in ``AdaptedHead``, as are the next two.
        phi_normalization: what makes Phi 1 on average.
        missing: the classes that a client lacks.
    """

    def __init__(
        self,
        feature_dim: PositiveInt,
        num_classes: PositiveInt,
        phi: Form,
        phi_normalization: Normalization,
        missing: Missing,
    ) -> None:
        super().__init__(num_classes, True, phi, phi_normalization, missing)
        self.linear = nn.Linear(feature_dim, num_classes, bias=False)

    def forward(self, z: Tensor) -> Tensor:
        """Logits [B, C]; -inf for the classes that are left out."""
        return self.adapted(self.linear(z))

    def prototypes(self) -> Tensor:
        """The rows of W, without Phi."""
        return self.linear.weight.detach()
