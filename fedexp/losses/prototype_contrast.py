"""FedPCL: features are contrasted with global prototypes and with the prototypes of each client."""

from collections.abc import Sequence
from typing import Literal

import torch
import torch.nn.functional as F
from pydantic import NonNegativeFloat, PositiveFloat
from torch import Tensor

from fedexp.config.compatibility.traits import CLASS_PROTOTYPES
from fedexp.contract import Forward, PartMessage, PartUpdate, Setting
from fedexp.core.forward import is_of_class
from fedexp.core.prototypes import stack_reports
from fedexp.losses.prototype_loss import PrototypeLoss, Weighting

Negatives = Literal["others", "all"]


def contrasts(
    z: Tensor,
    y: Tensor,
    prototypes: Tensor,
    holds: Tensor,
    temperature: float,
    negatives: Negatives,
) -> Tensor:
    """The contrastive losses [B, P] of B samples with P sets of prototypes.

    With the prototypes p_c of a set it is $-log(exp(z p_y / tau) / sum_c exp(z p_c / tau))$. It is
    0 if the sample's class, or each other class, has no prototypes.

    Args:
        z: unit features [B, d].
        y: labels [B].
        prototypes: [P, C, d].
        holds: [C] bool, the classes that have prototypes.
        temperature: tau.
        negatives: the classes c in the sum: all classes, or all others than y.
    """
    scores = torch.einsum("bd,pcd->bpc", z, prototypes) / temperature
    own = torch.take_along_dim(scores, y[:, None, None], dim=2).squeeze(2)
    is_own = is_of_class(y, len(holds))
    summed = holds & ~is_own if negatives == "others" else holds.expand_as(is_own)
    # The least finite number replaces -inf: the gradient of logsumexp is NaN if all are -inf.
    least = torch.finfo(scores.dtype).min
    losses = scores.masked_fill(~summed.unsqueeze(1), least).logsumexp(dim=2) - own
    known = holds[y] & (holds & ~is_own).any(dim=1)
    return torch.where(known.unsqueeze(1), losses, 0)


class PrototypeContrast(PrototypeLoss):
    """Contrasts with the global prototypes, and with the prototypes of each client (FedPCL).

    A client sends the means of its unit features $z / ||z||$ for each class. The loss is the sum of
    a contrast with the global prototypes, the mean over the clients, and of the mean contrast with
    the prototypes of one client of the latest cohort (Tan et al., NeurIPS 2022; ``contrasts``). A
    class that this client lacks has the global prototype there, as in the released code. Before
    there are prototypes, the contrasts are 0.

    In the paper the backbones are pre-trained and fixed, and a projection of their features is
    trained: here ``model.train`` chooses the layers that train. The released code adds up the
    clients' contrasts, without one with the global prototypes, and compares prototypes with the
    features of a batch. In PFLlib the sum in the denominator has the sample's own class, too.

    Args:
        ce_weight: weight of the cross-entropy, which also trains the head; 0 in the paper.
        temperature: tau.
        negatives: the classes in the denominator: "others" are all classes but the sample's, as in
            the paper; "all" are all classes.
        weighting: the clients' weights in a global prototype; see ``mean_prototypes``.
    """

    traits = PrototypeLoss.traits | {CLASS_PROTOTYPES}
    prototypes: Tensor
    holds: Tensor
    local: Tensor
    local_holds: Tensor

    def __init__(
        self,
        ce_weight: NonNegativeFloat,
        temperature: PositiveFloat,
        negatives: Negatives,
        weighting: Weighting,
    ) -> None:
        super().__init__()
        self.ce_weight, self.temperature = ce_weight, temperature
        self.negatives, self.weighting = negatives, weighting

    def setup(self, setting: Setting) -> None:
        """Make buffers for the global prototypes, those of a largest cohort, and their masks."""
        super().setup(setting)
        classes, clients = setting.num_classes, setting.most_updates
        empty = torch.zeros(clients, classes, setting.feature_dim)
        no_class = torch.zeros(clients, classes, dtype=torch.bool)
        for name, tensor in (("local", empty), ("local_holds", no_class)):
            self.register_buffer(name, tensor, persistent=False)
        self.register_buffer("prototypes", empty[0].clone(), persistent=False)
        self.register_buffer("holds", no_class[0].clone(), persistent=False)

    def embed(self, z: Tensor) -> Tensor:
        """The unit features [n, d]."""
        return F.normalize(z, dim=1)

    def receive(self, message: PartMessage) -> None:
        """Load the prototypes that the server sent. If it sent none, no class has a prototype."""
        for name in ("holds", "local_holds"):
            self.get_buffer(name).fill_(False)
        for name, tensor in message.extras.items():
            rows = self.get_buffer(name)[: len(tensor)]  # a cohort may be smaller than the largest
            rows.copy_(tensor)

    def forward(self, batch: Forward) -> Tensor:
        """The loss, a scalar."""
        labels = F.cross_entropy(batch.logits, batch.targets, reduction="none")
        local = torch.where(self.local_holds.unsqueeze(2), self.local, self.prototypes)
        sets = torch.cat([self.prototypes.unsqueeze(0), local])
        z, y = self.embed(batch.z), batch.targets
        losses = contrasts(z, y, sets, self.holds, self.temperature, self.negatives)
        exists = self.local_holds.any(dim=1).to(losses)
        of_clients = (losses[:, 1:] * exists).sum(dim=1) / exists.sum().clamp(min=1)
        return batch.mean(self.ce_weight * labels + losses[:, 0] + of_clients)

    def aggregate(self, updates: Sequence[PartUpdate]) -> None:
        """Also keep the prototypes [K, C, d] of this cohort's clients; earlier ones are dropped."""
        super().aggregate(updates)
        local, counts = stack_reports(updates)
        self.known |= {"local": local, "local_holds": counts > 0}
