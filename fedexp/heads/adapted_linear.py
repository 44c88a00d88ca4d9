"""FedGELA's local adaptation on a trained classifier."""

from pydantic import PositiveInt
from torch import Tensor, nn

from fedexp.heads.adaptation import AdaptedHead, Form, Missing, Normalization


class AdaptedLinear(AdaptedHead):
    """A trained linear classifier whose logits each client scales by its factors Phi_k.

    $logits_c = Phi_k(c) W_c . z$, where W_c is the row of class c in the trained and shared weight
    W (Fan et al., NeurIPS 2023). In the paper's Table 4 this is the variant with local adaptation
    (LA) and without the simplex. Client k uses Phi_k in local training and in its personal model;
    the global model has $Phi = 1$. z is not normalised, and there is no bias. If $Phi_k(c) = 0$,
    W_c has no gradient at client k.

    Args:
        feature_dim: d.
        num_classes: C.
        phi: how Phi_k(c) depends on the client's share of class c; see ``AdaptedHead``.
        phi_normalization: whether the mean of Phi is 1 over the classes or over the clients; see
            ``AdaptedHead``.
        missing: treatment of the classes that a client lacks; see ``AdaptedHead``.
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
        """Logits [B, C]; -inf for excluded classes, see ``AdaptedHead.adapted``."""
        return self.adapted(self.linear(z))

    def prototypes(self) -> Tensor:
        """The rows of the weight W [C, d], not scaled by the client's factors Phi."""
        return self.linear.weight.detach()
