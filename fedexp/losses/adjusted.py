"""Cross-entropy of logits that, in training only, are adjusted to the client's class counts.

If a client has few or no samples of a class, cross-entropy lowers the logit of this class. Each
loss here weakens this effect by scaling or shifting the logits.
"""

from typing import Annotated, Literal

import torch
import torch.nn.functional as F
from pydantic import Field, NonNegativeFloat
from torch import Tensor

from fedexp.config.compatibility.traits import LEAVES_OUT_CLASSES
from fedexp.contract import Client, Forward, Loss, Memory, PartMessage, Setting


class Adjusted(Loss):
    """The base class of losses that are cross-entropies of scaled and shifted logits.

    The loss of a sample is -log softmax(scale * logits + shift)[target]. The loss of a batch is the
    mean. ``scale`` and ``shift`` are tensors [C]. For the global model ``scale`` is 1 and ``shift``
    is 0.
    """

    takes_only_merged = True
    scale: Tensor
    shift: Tensor

    def setup(self, setting: Setting) -> None:
        """Make buffers for ``scale`` and ``shift``, which adjust the logits."""
        self.register_buffer("scale", torch.ones(setting.num_classes), persistent=False)
        self.register_buffer("shift", torch.zeros(setting.num_classes), persistent=False)

    def adjustment(self, counts: Tensor) -> tuple[Tensor, Tensor]:
        """Compute the pair (scale, shift), [C] each.

        Args:
            counts: [C] float32, the client's number of training samples of each class. At least one
                is above zero.
        """
        raise NotImplementedError

    def scale_at(self, step: int | Tensor) -> Tensor:
        """The scale [C] in a step of local training. In this class it is the same in all steps."""
        return self.scale

    def receive(self, message: PartMessage) -> None:
        """Set scale to 1 and shift to 0 for evaluation; ``begin`` sets the values for training."""
        self.scale.fill_(1)
        self.shift.fill_(0)

    def begin(self, client: Client, message: PartMessage, memory: Memory) -> None:
        """Set scale and shift from this client's class counts."""
        scale, shift = self.adjustment(client.data.class_counts.float())
        self.scale.copy_(scale)
        self.shift.copy_(shift)

    def forward(self, batch: Forward) -> Tensor:
        """The loss, a scalar."""
        logits = self.scale_at(batch.step) * batch.logits + self.shift
        # Keep the logit -inf of classes that the head excludes: 0 times -inf would be NaN.
        logits = torch.where(batch.logits.isneginf(), batch.logits, logits)
        return batch.mean(F.cross_entropy(logits, batch.targets, reduction="none"))


class LogitCalibration(Adjusted):
    """FedLC: lowers the logit of each class c by the margin $tau n_c^(-1/4)$.

    n_c is the client's number of samples of class c, so rare classes get a larger margin (Zhang et
    al., ICML 2022). The softmax excludes classes without samples. Unlike in the paper's formula,
    the softmax's denominator includes the true class, so that the loss is a cross-entropy.

    Args:
        tau: the margin of a class with one sample.
    """

    traits = frozenset({LEAVES_OUT_CLASSES})

    def __init__(self, tau: NonNegativeFloat) -> None:
        super().__init__()
        self.tau = tau

    def adjustment(self, counts: Tensor) -> tuple[Tensor, Tensor]:
        """The scale 1, and the shift -tau n_c^(-1/4), which is -inf where n_c = 0.

        n_c is the client's number of samples of class c.
        """
        margins = self.tau * counts.clamp(min=1).pow(-0.25)
        return torch.ones_like(counts), torch.where(counts > 0, -margins, -torch.inf)


class RestrictedSoftmax(Adjusted):
    """FedRS: scales down the logits of absent or rare classes (Li and Zhan, KDD 2021).

    The head of the released code has no bias: use ``head=linear_nobias`` to reproduce it.

    Args:
        alpha: the smallest factor that multiplies a logit. With 1 the loss is cross-entropy.
        scaling: how to compute the factor of the logit of class c. With ``absent``, as in the
            paper, it is alpha for classes that the client lacks, and 1 for the others. With
            ``shares`` it is alpha + (1 - alpha) n_c / max_j n_j, where n_c is the client's number
            of samples of class c. With ``released`` it is 1 - (1 - alpha)^t (1 - n_c / max_j n_j)
            in local step t = 1, 2, ... In step 1 this is the factor of ``shares``, and later it
            tends to 1: in each step the released code applies the formula of ``shares`` again, with
            the factors of the step before in place of n_c / max_j n_j.
    """

    unread_if = {"scaling": {"alpha": (1,)}}

    def __init__(
        self,
        alpha: Annotated[float, Field(ge=0, le=1)],
        scaling: Literal["absent", "shares", "released"],
    ) -> None:
        super().__init__()
        self.alpha, self.scaling = alpha, scaling

    def adjustment(self, counts: Tensor) -> tuple[Tensor, Tensor]:
        """The factors of the first local step as scale, and the shift 0."""
        shares = (counts > 0).float() if self.scaling == "absent" else counts / counts.max()
        ones = torch.ones_like(counts)
        return torch.lerp(self.alpha * ones, ones, shares), torch.zeros_like(counts)

    def scale_at(self, step: int | Tensor) -> Tensor:
        """The factors [C] of the logits in local step t = ``step`` + 1."""
        if self.scaling != "released":
            return self.scale
        return 1 - (1 - self.alpha) ** step * (1 - self.scale)


class LogitAdjustment(Adjusted):
    """Adds $tau log p_c$ to the logit of class c (Menon et al., ICLR 2021, Eq. 10).

    The prior p_c is the share of class c among the client's training samples. In the paper there is
    one training set for all, and its shares are the prior.

    Args:
        tau: the weight of log p_c. With 1 the unadjusted logits learn to predict as if all classes
            had equal shares. With 0 the loss is cross-entropy over the classes that ``absent`` does
            not exclude.
        absent: treatment of classes without samples. With ``exclude`` the softmax excludes these
            classes. With ``one_sample`` each counts as one sample, as in the code released with
            FedETF. Then even a client with only one class learns to distinguish it from the others.
        personal: the loss of a personal model that is tuned, or trained separately. With
            ``adjusted`` its logits are adjusted, too. With ``cross_entropy`` they are not, so that
            the model learns its client's class shares.
    """

    of_personal = frozenset({"personal"})

    def __init__(
        self,
        tau: NonNegativeFloat,
        absent: Literal["exclude", "one_sample"],
        personal: Literal["adjusted", "cross_entropy"],
    ) -> None:
        super().__init__()
        self.tau, self.absent, self.personal = tau, absent, personal
        if absent == "exclude":
            self.traits = frozenset({LEAVES_OUT_CLASSES})

    def begin(self, client: Client, message: PartMessage, memory: Memory) -> None:
        """Set scale and shift, or reset both for a personal model trained with cross-entropy."""
        if client.is_personal and self.personal == "cross_entropy":
            self.receive(message)
        else:
            super().begin(client, message, memory)

    def adjustment(self, counts: Tensor) -> tuple[Tensor, Tensor]:
        """The scale 1, and the shift tau log p_c, which is -inf for excluded classes.

        p_c is the share of class c among the client's samples.
        """
        shift = self.tau * (counts.clamp(min=1) / counts.sum()).log()
        left_out = (counts == 0) & (self.absent == "exclude")
        return torch.ones_like(counts), shift.masked_fill(left_out, -torch.inf)


class BalancedSoftmax(LogitAdjustment):
    """Logit adjustment with $tau = 1$, excluding absent classes (Ren et al., NeurIPS 2020)."""

    def __init__(self) -> None:
        super().__init__(tau=1, absent="exclude", personal="adjusted")
