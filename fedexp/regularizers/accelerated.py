"""FedACG: clients start from, and are pulled to, a point ahead of the global model."""

from dataclasses import replace
from typing import Annotated

from pydantic import Field, NonNegativeFloat

from fedexp.config.compatibility.traits import NOT_THE_MEAN, OFFSET_START, OTHER_STARTS
from fedexp.contract import PartMessage, Setting, Tensors
from fedexp.regularizers.anchors import combine
from fedexp.regularizers.proximal import Proximal


class Accelerated(Proximal):
    """Clients start from, and are pulled to, the global model plus a momentum step (FedACG).

    The method is from Kim et al., CVPR 2024. The equations below agree with the released code; the
    paper's text was not compared.

    In round t clients start at $w^t + lambda m^t$, where w^t is the global model and m^t is the
    server's momentum. The penalty is $(mu/2) ||w - (w^t + lambda m^t)||^2$. The momentum is 0 at
    first. After each round the server computes $m^(t+1) = lambda m^t + D$, where D is the cohort's
    mean step from $w^t + lambda m^t$. The next global model $w^(t+1) = w^t + m^(t+1)$ is the mean
    of the cohort's models. So m^(t+1) is the last step of the global model.

    A client downloads only $w^t + lambda m^t$, as many bytes as in FedAvg. The global model that is
    evaluated is w^t. Momentum applies to parameters only: the message has the global model's
    buffers. In the released code momentum applies to buffers, too. The tuning of personal models
    also starts from $w^t + lambda m^t$.

    Args:
        mu: strength of the pull. The paper calls it beta.
        momentum: lambda, the factor of the momentum.
    """

    takes_only_merged = True
    saved = ("step",)
    traits = frozenset({OFFSET_START})
    discourages = {
        NOT_THE_MEAN: "FedACG: the server expects the merged weights to be the mean of the "
        "cohort's; with this {other} the momentum is another; take another {other}; "
        "aggregator=uniform fits",
        **dict.fromkeys(
            OTHER_STARTS,
            "FedACG: clients start from the global model plus a momentum step; this {other} may "
            "start them from other weights, which the momentum does not fit",
        ),
    }

    def __init__(self, mu: NonNegativeFloat, momentum: Annotated[float, Field(ge=0, lt=1)]) -> None:
        super().__init__(mu)
        self.momentum = momentum

    def setup(self, setting: Setting) -> None:
        """Make the buffers that parameters are compared with. Set the momentum to 0 (empty)."""
        super().setup(setting)
        self.names = tuple(setting.model.shared_parameters)
        self.step: Tensors = {}

    def message_to(self, client: int, message: PartMessage) -> PartMessage:
        """Send to all clients w^t + lambda m^t, the global model plus a momentum step."""
        return replace(message, weights=combine(message.weights, self.step, self.momentum))

    def correct(self, current: Tensors, merged: Tensors, sums: Tensors, clients: int) -> Tensors:
        """Store the global model's step as the next momentum; return ``merged`` unchanged."""
        self.step = {name: merged[name] - current[name] for name in self.names}
        return merged
