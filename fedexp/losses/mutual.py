"""FML: the shared model and a client's own model learn from the labels and from each other."""

import torch.nn.functional as F
from torch import Tensor

from fedexp.config.compatibility.traits import MUTUAL, SECOND_MODEL
from fedexp.config.schema import Share
from fedexp.contract import Forward, Loss, Outputs
from fedexp.losses.distillation import distillation


class Mutual(Loss):
    """The sum of a loss of the shared model and a loss of the client's own model (FML).

    The own model v and the shared model w are trained on the same batch. p_v and p_w are their
    predicted probabilities, and CE is the cross-entropy. The losses are

        $alpha CE(p_v, y) + (1 - alpha) KL(p_w || p_v)$ for v,
        $beta CE(p_w, y) + (1 - beta) KL(p_v || p_w)$ for w

    (Shen et al., 2020). Each model's loss trains that model alone. In the paper the
    own models of clients may have different layers; here all have the layers of the shared model.
    ``local.grad_clip`` uses the norm of the gradients of both models together.

    Args:
        alpha: the share of the labels in the own model's loss.
        beta: the share of the labels in the shared model's loss.
    """

    takes_only_merged = True
    takes_own_model = True
    traits = frozenset({MUTUAL})
    needs = {
        SECOND_MODEL: "loss=mutual: needs a second model at the client; use "
        "personalization=second_model"
    }

    def __init__(self, alpha: Share, beta: Share) -> None:
        super().__init__()
        self.alpha, self.beta = alpha, beta

    def forward(self, batch: Forward, **references: Outputs) -> Tensor:
        """The loss, a scalar."""
        own, shared = references["own"].logits, batch.logits
        losses = learned(own, shared, batch.targets, self.alpha)
        return batch.mean(losses + learned(shared, own, batch.targets, self.beta))


def learned(logits: Tensor, teacher_logits: Tensor, targets: Tensor, share: float) -> Tensor:
    """The loss [B] of a model that learns from labels, with weight ``share``, and from a teacher.

    Args:
        logits: the model's logits [B, C].
        teacher_logits: the other model's logits [B, C]; they get no gradient.
        targets: the labels [B].
        share: the weight of the cross-entropy; the distillation has the weight 1 - share.
    """
    labels = F.cross_entropy(logits, targets, reduction="none")
    return share * labels + (1 - share) * distillation(logits, teacher_logits)
