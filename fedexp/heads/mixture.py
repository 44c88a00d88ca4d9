"""FedEM's model: a mixture of classifiers, weighted differently by each client."""

import torch
from pydantic import PositiveInt
from torch import Tensor, nn

from fedexp.config.compatibility.traits import CHANGES_HEAD_INPUT, DIFFERENT_NETWORKS, MIXTURE
from fedexp.contract import Client, Head, Memory, PartMessage, Tensors


class Mixture(Head):
    """A mixture of M classifiers, with separate mixture weights for each client (FedEM).

    $p(y | x) = sum_m pi_km p_m(y | x)$ (Marfoq et al., NeurIPS 2021, Alg. 1). Component m is a
    separate backbone with features z_m, and a linear classifier with weight W_m and bias b_m. It
    predicts $p_m(y | x) = softmax(W_m z_m + b_m)_y$. The M components are sent, trained and
    averaged like one model. The mixture weights pi_k [M] of client k stay at the client; initially
    each is $1/M$. Before local training the client uses the received components for an EM step over
    its training samples i, in eval mode and without augmentation:

        E-step: $q_im$ proportional to $pi_km p_m(y_i | x_i)$, with sum 1 over m
        M-step: $pi_km <- mean_i q_im$

    The personal model of client k has the mixture weights pi_k. In the global model all components
    have the same weight.

    ``loss=mixture`` trains the components by FedEM's M-step. Any other loss gets the mixture's
    log-probabilities as logits. ``loss=cross_entropy`` has the gradients that ``loss=mixture``
    would have if it computed q_im anew in each step, from the current components and pi_k.

    Args:
        feature_dim: d, the width of one backbone's features. The head's input z is [B, M d].
        num_classes: C.
        components: M, the number of components.
        bias: whether the classifiers have a bias b_m.
    """

    derived = ("shares",)
    takes_only_merged = True
    traits = frozenset({MIXTURE})
    forbids = {
        CHANGES_HEAD_INPUT: "head=mixture: weighs the components by the features as they are, but "
        "this {other} changes them before the head; use another {other}",
        DIFFERENT_NETWORKS: "{other}: a mixture has several copies of one network; with "
        "head=mixture use a model that is the same for all clients",
    }
    shares: Tensor
    prior: Tensor

    def __init__(
        self,
        feature_dim: PositiveInt,
        num_classes: PositiveInt,
        components: PositiveInt,
        bias: bool,
    ) -> None:
        super().__init__()
        self.backbones = components
        self.members = nn.ModuleList(
            nn.Linear(feature_dim, num_classes, bias) for _ in range(components)
        )
        self.register_buffer("shares", torch.full((components,), 1 / components))
        # The loss needs pi_k from before the M-step. Personal models do not need this buffer.
        self.register_buffer("prior", self.shares.clone(), persistent=False)

    def forward(self, z: Tensor) -> Tensor:
        """The logarithm of the mixture's probabilities, used as logits [B, C]."""
        return (self.log_probabilities(z) + self.shares.log().unsqueeze(-1)).logsumexp(dim=-2)

    def log_probabilities(self, z: Tensor) -> Tensor:
        """The log-probability of each class by each of the M components, [B, M, C]."""
        parts = z.chunk(self.backbones, dim=-1)
        logits = [member(part) for member, part in zip(self.members, parts, strict=True)]
        return torch.stack(logits, dim=-2).log_softmax(dim=-1)

    def prototypes(self) -> Tensor:
        """The weights W_1 to W_M of the M components side by side, [C, M d]; a class is a row."""
        rows = [member.get_parameter("weight").detach() for member in self.members]
        return torch.cat(rows, dim=1)

    def receive(self, message: PartMessage) -> None:
        """Give all components the same weight."""
        self.shares.fill_(1 / self.backbones)

    @torch.no_grad()
    def begin(self, client: Client, message: PartMessage, memory: Memory) -> None:
        """Load the client's component weights pi_k. Before local training do an EM step."""
        self.prior.copy_(memory.get("shares", torch.full_like(self.prior, 1 / self.backbones)))
        self.shares.copy_(self.prior)
        if not client.is_personal:
            z, labels = client.features()
            losses = losses_of(self.log_probabilities(z), labels)
            self.shares.copy_(responsibilities(losses, self.prior).mean(dim=0))

    def report(self, client: Client, memory: Memory) -> Tensors:
        """Store the component weights pi_k in the client's memory. Nothing is sent."""
        memory["shares"] = self.shares.clone()
        return {}


def losses_of(log_probabilities: Tensor, labels: Tensor) -> Tensor:
    """The cross-entropy [B, M] of the M components, from their ``log_probabilities`` [B, M, C]."""
    index = labels[:, None, None].expand(-1, log_probabilities.shape[1], 1)
    return -log_probabilities.gather(2, index).squeeze(2)


def responsibilities(losses: Tensor, shares: Tensor) -> Tensor:
    """For each sample, the probability that a component made its label, q [B, M] (the E-step).

    Args:
        losses: [B, M] cross-entropy of each component.
        shares: [M] the weights pi_k of the components.
    """
    return (shares.log() - losses).softmax(dim=1)
