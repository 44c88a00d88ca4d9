"""FedKD: two models learn from each other, less while their predictions are poor."""

import torch.nn.functional as F
from torch import Tensor, nn

from fedexp.config.compatibility.traits import MUTUAL, SECOND_MODEL
from fedexp.contract import Forward, Loss, Network, Outputs
from fedexp.losses.distillation import distillation


class AdaptiveMutual(Loss):
    """The losses of the shared model and of the client's own model, which learn from each other.

    w is the shared model (the student) and v the client's own model (the teacher). CE_w and CE_v
    are their mean cross-entropies on the batch, p are predicted probabilities and z features. W is
    a matrix that is trained with w. The losses are

        $CE_v + (KL(p_w || p_v) + mse(z_v, W z_w)) / (CE_v + CE_w)$ for v,
        $CE_w + (KL(p_v || p_w) + mse(z_v, W z_w)) / (CE_v + CE_w)$ for w

    (Wu et al., Nature Communications 2022). The mean squared error, mse, is over the d features.
    Each model's loss trains that model alone. In the paper the own model has more layers than the
    shared one, and hidden layers and attention are compared; here both have the same layers, and
    the features are compared. In the released code the sum of both losses trains both models.
    ``local.grad_clip`` uses the norm of all gradients together.
    """

    takes_only_merged = True
    takes_own_model = True
    traits = frozenset({MUTUAL})
    needs = {
        SECOND_MODEL: "loss=adaptive_mutual: needs a second model at the client; use "
        "personalization=second_model"
    }

    def create(self, network: Network) -> None:
        """Make the matrix W [d, d]."""
        self.transform = nn.Linear(network.feature_dim, network.feature_dim, bias=False)

    def forward(self, batch: Forward, **references: Outputs) -> Tensor:
        """The loss, a scalar."""
        own, logits = references["own"], batch.logits
        own_labels, labels = (
            batch.mean(F.cross_entropy(each, batch.targets, reduction="none"))
            for each in (own.logits, logits)
        )
        z = self.transform(batch.z)
        own_gap = distillation(own.logits, logits) + _squares(own.z, z.detach())
        gap = distillation(logits, own.logits) + _squares(own.z.detach(), z)
        of_own = own_labels + batch.mean(own_gap) / (own_labels + labels.detach())
        return of_own + labels + batch.mean(gap) / (own_labels.detach() + labels)


def _squares(one: Tensor, other: Tensor) -> Tensor:
    """The mean squared difference [B] of two models' features [B, d]."""
    return (one - other).square().mean(dim=1)
