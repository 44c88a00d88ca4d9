"""FedNTD: distillation from the global model over all classes except the true class."""

import torch
import torch.nn.functional as F
from pydantic import NonNegativeFloat, PositiveFloat
from torch import Tensor

from fedexp.config.compatibility.traits import CHANGES_HEAD_INPUT, COMPARES_WITH_MODEL
from fedexp.contract import Forward, Loss, Outputs
from fedexp.core.forward import is_of_class
from fedexp.losses.distillation import distillation


def not_true_distillation(
    logits: Tensor, global_logits: Tensor, targets: Tensor, temperature: float
) -> Tensor:
    """The distillation loss of each sample, without its true class (Lee et al., NeurIPS 2022).

    The loss is KL(global || local), a divergence between the probabilities of the global model and
    of the model in training. Both probabilities are the softmax of logits / tau over all classes
    except the true one. A class that one of the models excludes (logit -inf) is excluded from both
    softmaxes. If no class remains, the loss is 0.

    Args:
        logits: [B, C] from the model in training.
        global_logits: [B, C] from the global model.
        targets: [B] true classes.
        temperature: tau.

    Returns:
        The loss of each sample, [B].
    """
    true = is_of_class(targets, logits.shape[1])
    excluded = true | logits.isneginf() | global_logits.isneginf()
    local, reference = (
        (each / temperature).masked_fill(excluded, -torch.inf) for each in (logits, global_logits)
    )
    return distillation(local, reference)


class NotTrueDistillation(Loss):
    """Cross-entropy + $beta tau^2$ * ``not_true_distillation`` (Lee et al., NeurIPS 2022).

    The global model is the model with which the client starts its turn. Weights that stay with the
    client, all of them with ``personalization=local``, are then those of its own last turn.

    Args:
        beta: weight of the distillation.
        temperature: tau. The factor tau^2 in the loss makes the scale of the gradient independent
            of tau.
    """

    unread_if = {"temperature": {"beta": (0,)}}
    traits = frozenset({COMPARES_WITH_MODEL})
    forbids = {
        CHANGES_HEAD_INPUT: "loss=ntd: the frozen global model has the head's logits of unchanged "
        "features, and this {other} changes the features before the head; use another loss"
    }

    reference_models = ("global",)

    def __init__(self, beta: NonNegativeFloat, temperature: PositiveFloat) -> None:
        super().__init__()
        self.beta, self.temperature = beta, temperature

    def forward(self, batch: Forward, **references: Outputs) -> Tensor:
        """The loss, a scalar."""
        losses = F.cross_entropy(batch.logits, batch.targets, reduction="none")
        divergences = not_true_distillation(
            batch.logits, references["global"].logits, batch.targets, self.temperature
        )
        return batch.mean(losses + self.beta * self.temperature**2 * divergences)
