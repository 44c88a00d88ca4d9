"""FedProx: a quadratic pull to the global model."""

from collections.abc import Iterable

import torch
from pydantic import NonNegativeFloat
from torch import Tensor

from fedexp.contract import Client, Memory, PartMessage, Regularizer, Setting
from fedexp.regularizers.anchors import Anchors


class Proximal(Regularizer):
    """The penalty $(mu / 2) ||w - w^t||^2$ on trained parameters (Li et al., MLSys 2020, Eq. 2).

    w^t are the weights from which local training starts. The penalty's gradient is $mu (w - w^t)$,
    which is zero at the first local step.

    Args:
        mu: the penalty's strength. For a penalty written as ``c * ||w - w^t||^2``, set mu = 2c.
    """

    takes_only_merged = True

    def __init__(self, mu: NonNegativeFloat) -> None:
        super().__init__()
        self.mu = mu

    def setup(self, setting: Setting) -> None:
        """Make an anchor for each parameter: a buffer for the parameter's initial value."""
        self.anchors = Anchors(setting.model.parameters)

    def begin(self, client: Client, message: PartMessage, memory: Memory) -> None:
        """Set the anchors to the model that the client starts from."""
        self.anchors.set(client.weights)

    def forward(self, parameters: Iterable[tuple[str, Tensor]]) -> Tensor | float:
        """The penalty, a scalar."""
        squares = [(value - self.anchors[name]).square().sum() for name, value in parameters]
        return 0.5 * self.mu * torch.stack(squares).sum()
