"""FLUTE's penalty: a client's classifier is pulled to a simplex of the classes that it holds."""

from collections.abc import Iterable

import torch
from pydantic import NonNegativeFloat
from torch import Tensor

from fedexp.config.compatibility.traits import ACTS_ON_HEAD, LINEAR_HEAD
from fedexp.contract import Client, Memory, PartMessage, Regularizer, Setting
from fedexp.core.transfer import to_device

WEIGHT = "head.linear.weight"
"""The classifier of a linear head."""


def collapse_distance(weight: Tensor, holds: Tensor) -> Tensor:
    """The distance of a classifier W from neural collapse, a scalar.

    It is the Frobenius norm of $W W^T / ||W W^T|| - (I - 1 1^T / C) * h h^T / sqrt(C - 1)$. It is 0
    if the rows of W are the corners of a simplex of equal angles and the client holds all classes.

    Args:
        weight: W [C, d], not zero.
        holds: h [C], 1 for a class that the client holds and 0 for another.
    """
    count = len(weight)
    products = weight @ weight.T
    simplex = torch.eye(count, device=weight.device) - 1 / count
    target = simplex * torch.outer(holds, holds) / max(count - 1, 1) ** 0.5
    distance: Tensor = (products / products.norm() - target).norm()
    return distance


class NeuralCollapse(Regularizer):
    """The penalty $strength D(W) + decay ||W||^2$ on the linear head's W (FLUTE).

    D is W's distance from neural collapse, ``collapse_distance``, for the classes that the client
    holds. These are the terms of Liu et al. (ICML 2024) for the head of a network. The formulas are
    those of the released code; the paper's text was not compared. For the other parts of FLUTE use
    ``personalization=flute``.

    Args:
        strength: weight of the distance from neural collapse.
        decay: weight of the squared norm of W.
    """

    takes_only_merged = True
    traits = frozenset({ACTS_ON_HEAD})
    takes_tokens = False
    needs = {LINEAR_HEAD: "regularizer=neural_collapse: needs a linear classifier; use head=linear"}
    holds: Tensor

    def __init__(self, strength: NonNegativeFloat, decay: NonNegativeFloat) -> None:
        super().__init__()
        self.strength, self.decay = strength, decay

    def setup(self, setting: Setting) -> None:
        """Make a buffer for the classes that a client holds."""
        self.register_buffer("holds", torch.zeros(setting.num_classes), persistent=False)

    def begin(self, client: Client, message: PartMessage, memory: Memory) -> None:
        """Set the classes that the client holds."""
        self.holds.copy_(held_classes(client))

    def forward(self, parameters: Iterable[tuple[str, Tensor]]) -> Tensor | float:
        """The penalty; 0 in a phase that does not train the head."""
        for name, value in parameters:
            if name == WEIGHT:
                distance = collapse_distance(value, self.holds)
                return self.strength * distance + self.decay * value.square().sum()
        return 0.0


def held_classes(client: Client) -> Tensor:
    """For each class, 1 if the client holds samples of it, else 0; [C] float32."""
    return to_device((client.data.class_counts > 0).float(), client.device)
