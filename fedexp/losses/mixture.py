"""FedEM's loss: each component learns from the samples that it is responsible for."""

from types import MappingProxyType
from typing import cast

from torch import Tensor

from fedexp.compatibility.traits import MIXTURE
from fedexp.core.forward import Forward
from fedexp.core.frozen_copies import Reference
from fedexp.core.sockets import Loss
from fedexp.heads.mixture import Mixture, losses_of, responsibilities


class ResponsibilityWeighted(Loss):
    """The components' cross-entropies, weighted by their responsibilities for each sample.

    The loss is mean_i sum_m q_im CE(component m, sample i) (Marfoq et al., NeurIPS 2021, Alg. 1).
    ``head=mixture`` explains the components, q_im and pi_k. The responsibilities q_im follow from
    the received components and the client's pi_k before this round, so they do not change during
    the round. Each step computes q_im for the inputs of its batch, which may be augmented. This
    costs a forward pass of the received model.

    The components have no weight in common. So an elementwise optimizer trains each component as if
    it were alone. But ``local.grad_clip`` uses the norm of all gradients together.
    """

    reference_models = ("global",)
    needs = MappingProxyType({MIXTURE: "loss=mixture: needs a mixture of models; use head=mixture"})

    def forward(self, batch: Forward, **references: Reference) -> Tensor:
        """The loss, a scalar."""
        head, received = cast(Mixture, batch.head), references["global"]
        before = cast(Mixture, received.head).log_probabilities(received.z)
        q = responsibilities(losses_of(before, batch.targets), head.prior)
        losses = losses_of(head.log_probabilities(batch.z), batch.targets)
        return batch.mean((q * losses).sum(dim=1))
