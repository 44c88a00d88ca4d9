"""MOON: features approach the global model's and move away from the previous local model's."""

import torch
import torch.nn.functional as F
from pydantic import NonNegativeFloat, PositiveFloat
from torch import Tensor

from fedexp.config.compatibility.traits import COMPARES_WITH_MODEL, PRIVATE_BACKBONE
from fedexp.contract import Client, Forward, Loss, Memory, Outputs, PartMessage, Tensors

_FIRST = "first"  # in a memory: the client has ended its first turn with the shared model


def model_contrast(z: Tensor, global_z: Tensor, previous_z: Tensor, temperature: float) -> Tensor:
    """Model-contrastive loss of each sample (Li et al., CVPR 2021, Eq. 3).

    The loss is small if the features z are similar to the global model's features and not to the
    previous local model's. It is -log(e^g / (e^g + e^p)) with g = cos(z, global_z) / tau and
    p = cos(z, previous_z) / tau.

    Args:
        z: features [B, d].
        global_z: [B, d], the global model's features of the same samples.
        previous_z: [B, d], the previous local model's features of the same samples.
        temperature: tau.

    Returns:
        The losses [B]. A loss is log 2 where ``global_z`` and ``previous_z`` are equal.
    """
    # g - p as one product: its gradient is exactly 0 where global_z and previous_z are equal.
    difference = F.normalize(global_z) - F.normalize(previous_z)
    return -F.logsigmoid((F.normalize(z) * difference).sum(dim=1) / temperature)


class Moon(Loss):
    """Cross-entropy + mu * ``model_contrast`` (Li et al., CVPR 2021).

    The contrast uses the features z, the input of the head. In the paper z is the output of a
    projection after the backbone, Linear-ReLU-Linear with 256 outputs. Here the projection is an
    option of the backbone (``fedexp.models.layers.project``, "mlp").

    In a client's first round the global model takes the place of the previous local model. So the
    contrast is constant in this round. A personal model that is trained beside the shared model
    (Ditto) is compared with itself at the end of the client's previous turn, while a tuned model is
    compared with the shared model that the client trained last.

    Args:
        mu: weight of the contrast.
        temperature: tau of the contrast.
    """

    unread_if = {"temperature": {"mu": (0,)}}
    takes_only_merged = True
    traits = frozenset({COMPARES_WITH_MODEL})
    forbids = {
        PRIVATE_BACKBONE: "loss=moon: with this {other} the received features are those of the "
        "client's own last model, so that the contrast is constant; take another loss"
    }
    reference_models = ("global", "previous")

    def __init__(self, mu: NonNegativeFloat, temperature: PositiveFloat) -> None:
        super().__init__()
        self.mu, self.temperature = mu, temperature

    def begin(self, client: Client, message: PartMessage, memory: Memory) -> None:
        """Load the client's previous model, if there is one."""
        is_first = memory.pop(_FIRST, None) is not None
        tunes = client.round > message.round
        if not client.is_personal or tunes:
            client.frozen_copies["previous"].set(memory)
        elif not is_first:  # the memory already has this turn's shared model
            client.frozen_copies["previous"].set(client.weights)

    def report(self, client: Client, memory: Memory) -> Tensors:
        """Store the trained model in the client's memory. Nothing is sent."""
        if not memory:
            memory[_FIRST] = torch.empty(0, device=client.device)
        memory.update({name: weight.clone() for name, weight in client.weights.items()})
        return {}

    def forward(self, batch: Forward, **references: Outputs) -> Tensor:
        """The loss, a scalar."""
        losses = F.cross_entropy(batch.logits, batch.targets, reduction="none")
        contrast = model_contrast(
            batch.z, references["global"].z, references["previous"].z, self.temperature
        )
        return batch.mean(losses + self.mu * contrast)
