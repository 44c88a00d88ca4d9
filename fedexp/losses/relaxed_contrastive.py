"""FedRCL: a contrastive loss at several layers that also pushes very similar features apart."""

from typing import Annotated, Literal, NamedTuple

import torch
import torch.nn.functional as F
from pydantic import Field, NonNegativeFloat, PositiveFloat, PositiveInt
from torch import Tensor

from fedexp.contract import Forward, Loss

Pairs = Literal["hardest", "all"]
Cosine = Annotated[float, Field(ge=-1, le=1)]


class RelaxedContrast(NamedTuple):
    """FedRCL's two loss terms of each sample: the contrast [B] and the divergence [B]."""

    contrast: Tensor
    divergence: Tensor


def relaxed_contrast(
    features: Tensor,
    targets: Tensor,
    temperature: float = 0.05,
    threshold: float = 0.7,
    negatives: int = 2,
    pairs: Pairs = "hardest",
    real: Tensor | None = None,
) -> RelaxedContrast:
    """The relaxed contrastive loss of each sample (Seo et al., CVPR 2024).

    The contrast pulls samples of one class together and pushes samples of different classes apart.
    The divergence pushes very similar samples of one class apart.

    s_ij is the cosine of the features of samples i and j. P_i is the set of the other samples of
    i's class, and N_i is the set of the samples of other classes. tau is the temperature. The two
    terms are

        contrast_i = mean over j in P_i of
            -log(e^(s_ij / tau) / (e^(s_ij / tau) + sum over k in N_i of e^(s_ik / tau))),
        divergence_i = log(1 + sum over j in P_i with s_ij >= threshold of e^((s_ij - 1) / tau)).

    With ``pairs="hardest"``, as in the released code, P_i has only the least similar sample of i's
    class, and N_i has only the ``negatives`` most similar samples of other classes. If P_i is
    empty, the contrast uses s_ii = 1 in place of s_ij, so that i is only pushed away from N_i. The
    divergence is then 0. If N_i is empty, the contrast is 0.

    The other arguments are those of ``RelaxedContrastive``.

    Args:
        features: [B, d].
        targets: the samples' classes [B].
        real: [B], 1 for a sample, 0 for padding. If None, all are samples.
    """
    unit = F.normalize(features, dim=1)
    cosines = unit @ unit.T
    same = targets.unsqueeze(1) == targets
    own = torch.eye(len(targets), dtype=torch.bool, device=targets.device)
    real = torch.ones_like(same) if real is None else (real > 0).expand_as(same)
    positive, negative = same & ~own & real, ~same & real
    # The least finite number replaces -inf: the gradient of logsumexp is NaN if all are -inf.
    least = torch.finfo(cosines.dtype).min
    repelling = (cosines / temperature).masked_fill(~negative, least)
    attracting, counts = cosines, positive
    if pairs == "hardest":
        repelling = repelling.topk(min(negatives, len(targets)), dim=1).values
        attracting = cosines.masked_fill(~positive, 2.0).amin(dim=1, keepdim=True)
        counts = positive.any(dim=1, keepdim=True)
    is_alone = ~counts.any(dim=1)
    repulsion = repelling.logsumexp(dim=1)
    losses = -F.logsigmoid(attracting / temperature - repulsion.unsqueeze(1))
    mean = losses.where(counts, 0).sum(dim=1) / counts.sum(dim=1).clamp(min=1)
    contrast = torch.where(is_alone, -F.logsigmoid(1 / temperature - repulsion), mean)
    close = counts & (attracting >= threshold)
    excess = ((attracting - 1) / temperature).masked_fill(~close, least)
    divergence = torch.cat([torch.zeros_like(excess[:, :1]), excess], dim=1).logsumexp(dim=1)
    return RelaxedContrast(contrast, divergence)


class RelaxedContrastive(Loss):
    """Cross-entropy + contrast + beta * divergence (FedRCL; Seo et al., CVPR 2024).

    ``relaxed_contrast`` computes the contrast and the divergence from the features after each stage
    of the backbone. Each term is a mean over the batch and over the stages.

    Args:
        temperature: tau of the contrast and the divergence.
        threshold: the divergence pushes two samples of a class apart if their cosine is at least
            this number. The paper calls it lambda.
        beta: weight of the divergence.
        negatives: with ``pairs=hardest``, the number of samples of other classes that each sample
            is compared with.
        pairs: with ``hardest`` (released code) each sample is compared with the least similar
            sample of its class and the most similar samples of other classes. With ``all`` (paper)
            it is compared with all samples of the batch.
    """

    unread_if = {"negatives": {"pairs": ("all",)}, "threshold": {"beta": (0,)}}

    levels = True

    def __init__(
        self,
        temperature: PositiveFloat,
        threshold: Cosine,
        beta: NonNegativeFloat,
        negatives: PositiveInt,
        pairs: Pairs,
    ) -> None:
        super().__init__()
        self.temperature, self.threshold, self.beta = temperature, threshold, beta
        self.negatives, self.pairs = negatives, pairs

    def forward(self, batch: Forward) -> Tensor:
        """The loss, a scalar."""
        losses = F.cross_entropy(batch.logits, batch.targets, reduction="none")
        for level in batch.levels:
            contrast, divergence = relaxed_contrast(
                level,
                batch.targets,
                self.temperature,
                self.threshold,
                self.negatives,
                self.pairs,
                batch.real,
            )
            losses = losses + (contrast + self.beta * divergence) / len(batch.levels)
        return batch.mean(losses)
