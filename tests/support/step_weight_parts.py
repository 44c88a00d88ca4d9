"""Parts whose steps compute their outputs with other weights than the model's."""

import torch
from torch import Tensor
from torch.nn import functional as F

from fedexp.contract import Client, Head, Memory, PartMessage, Personalization, Tensors

WEIGHT, BIAS = "head.linear.weight", "head.linear.bias"


class Shrinking(Personalization):
    """In step t the classifier W is W / (t + 1), and its bias is half of it plus W's mean."""

    def step_weights(self, parameters: Tensors, step: Tensor | int) -> Tensors:
        weight, bias = parameters[WEIGHT], parameters[BIAS]
        return {WEIGHT: weight / (step + 1), BIAS: 0.5 * bias + weight.mean(dim=1)}


class Scaled(Head):
    """Logits are a z W: a is the client's number plus 1 in evaluation, plus t + 2 in step t."""

    derived = ("scale",)
    scale: Tensor

    def __init__(self, feature_dim: int, num_classes: int) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(num_classes, feature_dim))
        self.register_buffer("scale", torch.ones(()))

    def begin(self, client: Client, message: PartMessage, memory: Memory) -> None:
        self.scale.fill_(client.data.client + 1)

    def step_weights(self, parameters: Tensors, step: Tensor | int) -> Tensors:
        return {"head.scale": self.scale + step + 1}

    def forward(self, z: Tensor) -> Tensor:
        return self.scale * F.linear(z, self.weight)


class Wrong(Personalization):
    """Returns a weight that the model does not have."""

    def step_weights(self, parameters: Tensors, step: Tensor | int) -> Tensors:
        return {"head.gone": torch.zeros(1)}
