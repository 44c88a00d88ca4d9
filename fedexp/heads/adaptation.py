"""FedGELA's local adaptation: each client scales its logits by factors from its class shares."""

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor

from fedexp.config.compatibility.traits import (
    HEAD_LEAVES_OUT_CLASSES,
    LEAVES_OUT_CLASSES,
    TAKES_MORE,
)
from fedexp.contract import Client, Head, Memory, PartMessage, Setting

Form = Literal["linear", "sqrt", "exp"]
Normalization = Literal["client", "population"]
Missing = Literal["exclude", "zero_logit"]

FORMS: dict[Form, Callable[[Tensor], Tensor]] = {
    "linear": torch.positive,
    "sqrt": torch.sqrt,
    "exp": torch.exp,
}
"""The functions Q, which turn a class's share of the client's samples into a raw factor."""


def adaptation(counts: Tensor, form: Form = "linear") -> Tensor:
    """Compute Phi_k(c), the factor of class c at client k, with mean 1 over the classes.

    Of the n_k training samples of client k, n_kc have class c. q_kc = n_kc / n_k is the share of
    class c, and Q is the function ``form``. Then Phi_k(c) = C Q(q_kc) / sum_j Q(q_kj), summed over
    the classes j that client k holds. Phi_k(c) is 0 for classes that the client lacks. If Q is the
    identity, Phi_k(c) = C q_kc, as in the paper and the released code (Fan et al., NeurIPS 2023).

    Args:
        counts: [C] the number of the client's training samples of each class.
        form: Q: ``linear``, ``sqrt`` or ``exp``.

    Returns:
        [C] float32; all 0 for a client without samples.
    """
    lengths = FORMS[form](_shares(counts)) * (counts > 0)
    return len(counts) * lengths / lengths.sum().clamp(min=torch.finfo(lengths.dtype).tiny)


def population_gamma(counts: Tensor, form: Form = "linear") -> Tensor:
    """Compute the gamma_c for which Phi_k(c) = gamma_c Q(q_kc) has mean 1 over the clients.

    Phi_k(c) is the factor of class c at client k, and q_kc is the share of class c among the
    client's n_k samples. The mean weights client k by n_k; n is the sum of all n_k. With
    gamma_c = n / sum_k n_k Q(q_kc), sum_k (n_k / n) Phi_k(c) is 1 for every class. So the average
    of the clients' classifiers is the global classifier (Fan et al., NeurIPS 2023, 5.3). If Q is
    the identity, gamma_c = n / n_c, where n_c is the number of samples of class c. The paper has
    one gamma for all classes.

    Args:
        counts: [N, C] the number of training samples of each class at each client.
        form: Q: ``linear``, ``sqrt`` or ``exp``.

    Returns:
        [C] float64; 0 for a class whose Q(q_kc) is 0 at every client, so that Phi_k(c) is 0 too.
    """
    counts = counts.double()
    sizes = counts.sum(dim=1, keepdim=True)
    total = (sizes * FORMS[form](_shares(counts))).sum(dim=0)
    return (sizes.sum() / total).masked_fill(total == 0, 0)


class AdaptedHead(Head):
    """A head that multiplies the logit of class c by a factor Phi_k(c) at client k.

    In the global model every factor is 1. A subclass computes logits and passes them through
    ``adapted``.

    Args:
        num_classes: C.
        adapt: whether clients scale their logits. If false, Phi = 1 at every client.
        phi: the function Q in ``adaptation``. It says how Phi depends on the class's share of the
            client's samples.
        phi_normalization: with ``client`` the mean of Phi_k(c) over all C classes is 1. Then a
            client needs only its own class counts, see ``adaptation``. With ``population`` the
            mean over the clients, weighted by n_k, is 1. This needs the class counts of all
            clients, see ``population_gamma``.
        missing: treatment of the classes that a client lacks. With ``exclude`` their logit is -inf.
            With ``zero_logit`` their logit is multiplied by Phi = 0. (With ``phi=exp`` and
            ``phi_normalization=population`` it is multiplied by Phi_k(c) = gamma_c > 0, because
            exp(0) = 1.)
    """

    takes_only_merged = True
    derived: tuple[str, ...] = ("phi", "included")
    phi: Tensor
    included: Tensor

    def __init__(
        self,
        num_classes: int,
        adapt: bool,
        phi: Form,
        phi_normalization: Normalization,
        missing: Missing,
    ) -> None:
        super().__init__()
        self.adapt, self.form, self.missing = adapt, phi, missing
        self.phi_normalization = phi_normalization
        excludes = {HEAD_LEAVES_OUT_CLASSES, LEAVES_OUT_CLASSES}
        leaves_out = excludes if adapt and missing == "exclude" else set()
        takes_counts = {TAKES_MORE} if adapt and phi_normalization == "population" else set()
        self.traits = frozenset(leaves_out | takes_counts)
        self.gamma = torch.zeros(num_classes, dtype=torch.float64)
        self.register_buffer("phi", torch.ones(num_classes))
        self.register_buffer("included", torch.ones(num_classes, dtype=torch.bool))

    def setup(self, setting: Setting) -> None:
        """With ``phi_normalization=population`` compute gamma, see ``population_gamma``."""
        if self.adapt and self.phi_normalization == "population":
            counts = setting.clients.all_class_counts("head.phi_normalization=population")
            self.gamma = population_gamma(counts, self.form)

    def receive(self, message: PartMessage) -> None:
        """Reset the head for the global model: all factors Phi are 1, no class is excluded."""
        self.phi.fill_(1)
        self.included.fill_(True)

    def begin(self, client: Client, message: PartMessage, memory: Memory) -> None:
        """If ``adapt``, set Phi and the excluded classes from this client's class counts."""
        if not self.adapt:
            return
        counts = client.data.class_counts
        self.phi.copy_(self._adaptation(counts))
        if self.missing == "exclude":
            self.included.copy_(counts > 0)

    def adapted(self, logits: Tensor) -> Tensor:
        """``logits`` [B, C] times the factors Phi_k(c); -inf for excluded classes.

        With ``adapt`` and ``missing=exclude``, a client excludes the classes that it lacks. The
        global model excludes none.
        """
        return torch.where(self.included, self.phi * logits, -torch.inf)

    def _adaptation(self, counts: Tensor) -> Tensor:
        """The logits' factors Phi_k [C] of a client with the class counts ``counts`` [C]."""
        if self.phi_normalization == "client":
            return adaptation(counts, self.form)
        self.gamma = self.gamma.to(counts.device)
        return self.gamma * FORMS[self.form](_shares(counts))


def _shares(counts: Tensor) -> Tensor:
    """Each class's share of the samples, from ``counts`` [..., C]; 0 if there are no samples."""
    return counts / counts.sum(dim=-1, keepdim=True).clamp(min=1)
