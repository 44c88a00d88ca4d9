"""FedEM's loss: a component learns most from samples that it predicts better than the others do."""

from typing import cast

from torch import Tensor

from fedexp.config.compatibility.traits import CHANGES_HEAD_INPUT, COMPARES_WITH_MODEL, MIXTURE
from fedexp.contract import Forward, Loss
from fedexp.core.frozen_copies import Reference
from fedexp.heads.mixture import Mixture, losses_of, responsibilities


class ResponsibilityWeighted(Loss):
    """The components' cross-entropies, weighted by their responsibilities for each sample.

    The loss is $mean_i sum_m q_im CE(component m, sample i)$ (Marfoq et al., NeurIPS 2021, Alg. 1).
    pi_k are client k's weights of the components. q_im, the responsibility of component m for
    sample i, is proportional to $pi_km p_m(y_i | x_i)$, with sum 1 over m; see
    ``heads.mixture.Mixture``. q_im depends on the received components and on the value of pi_k
    before this round, so local steps do not change q_im. Each step computes q_im for the inputs of
    its batch, which may be augmented. This costs a forward pass of the received model. The released
    code instead computes q_im once, before local training; without augmentation this is the same.

    The components have no parameter in common. So an optimizer that treats each parameter
    separately, such as SGD or Adam, trains each component as if it were alone. But
    ``local.grad_clip`` uses the norm of the gradients of all components together.
    """

    traits = frozenset({COMPARES_WITH_MODEL})
    reference_models = ("global",)
    needs = {MIXTURE: "loss=mixture: needs a mixture of models; use head=mixture"}
    forbids = {
        CHANGES_HEAD_INPUT: "loss=mixture: takes the features as they are, but this {other} "
        "changes them before the head; use another personalization"
    }

    def forward(self, batch: Forward, **references: Reference) -> Tensor:
        """The loss, a scalar."""
        head, received = cast(Mixture, batch.head), references["global"]
        before = cast(Mixture, received.head).log_probabilities(received.z)
        q = responsibilities(losses_of(before, batch.targets), head.prior)
        losses = losses_of(head.log_probabilities(batch.z), batch.targets)
        return batch.mean((q * losses).sum(dim=1))
