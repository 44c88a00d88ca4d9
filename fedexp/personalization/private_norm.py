"""FedBN and SiloBN: each client keeps the BatchNorm layers of its own data."""

from __future__ import annotations

from typing import Literal

from torch.nn.modules.batchnorm import _NormBase

from fedexp.core.sockets import Loss, Network, Personalization
from fedexp.errors import InputError

_STATISTICS = ("running_mean", "running_var", "num_batches_tracked")


class PrivateNorm(Personalization):
    """BatchNorm layers, or their running statistics alone, are private to each client.

    The rest is shared and averaged. A client's personal model is its latest local model. There is
    no global model, because the server does not get the private weights.

    Args:
        keeps: "layers" keeps weights, biases and running statistics (FedBN, Li et al., ICLR 2021,
            Algorithm 1); "statistics" keeps the running statistics alone (SiloBN, Andreux et al.,
            DART 2020).

    Raises:
        InputError: the model has no BatchNorm layer.
    """

    has_global = False

    def __init__(self, keeps: Literal["layers", "statistics"]) -> None:
        super().__init__()
        self.keeps = keeps

    def create(self, network: Network, loss: Loss) -> None:
        """Remember which weights belong to BatchNorm layers."""
        norms = {name: norm for name, norm in network.layers() if isinstance(norm, _NormBase)}
        self._private = frozenset(
            f"{layer}.{name}"
            for layer, norm in norms.items()
            for name in norm.state_dict()
            if self.keeps == "layers" or name in _STATISTICS
        )
        if not self._private:
            what = "BatchNorm layer" if self.keeps == "layers" else "running statistics"
            raise InputError(
                f"personalization.keeps={self.keeps}: this model has no {what} to keep; use a "
                "model with BatchNorm, such as model=resnet10 model.norm=batch"
            )

    def shared(self, name: str) -> bool:
        """Whether the weight is sent, not private."""
        return name not in self._private
