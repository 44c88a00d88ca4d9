"""FedBN and SiloBN: BatchNorm layers, or their running statistics, stay at each client."""

from typing import Literal

from torch.nn.modules.batchnorm import _NormBase

from fedexp.config.compatibility.traits import PRIVATE_STATISTICS
from fedexp.core.sockets import Loss, Network, Personalization
from fedexp.errors import InputError

_STATISTICS = ("running_mean", "running_var", "num_batches_tracked")


USE_BATCH_NORM = (
    "use a model with BatchNorm: model=resnet10 model.norm=batch, or model=mlp "
    "model.batch_norm=true"
)


def norm_weights(network: Network, keeps: Literal["layers", "statistics"]) -> list[str]:
    """The names of the weights in BatchNorm layers, or only those of their running statistics."""
    return [
        f"{layer}.{name}"
        for layer, norm in network.layers()
        if isinstance(norm, _NormBase)
        for name in norm.state_dict()
        if keeps == "layers" or name in _STATISTICS
    ]


class PrivateNorm(Personalization):
    """BatchNorm layers, or only their running statistics, are private to each client.

    All other weights are shared and averaged. A client's personal model is its latest local model.
    There is no global model, because the server does not get the private weights.

    Args:
        keeps: which weights are private. With "layers" the weights, biases and running statistics
            of BatchNorm layers are private (FedBN, Li et al., ICLR 2021, Algorithm 1). With
            "statistics" only the running statistics are private (SiloBN, Andreux et al., DART
            2020).

    Raises:
        InputError: the model has no BatchNorm layer, or no running statistics.
    """

    has_global = False
    traits = frozenset({PRIVATE_STATISTICS})

    def __init__(self, keeps: Literal["layers", "statistics"]) -> None:
        super().__init__()
        self.keeps = keeps

    def create(self, network: Network, loss: Loss) -> None:
        """Find the private weights: BatchNorm layers, or only their running statistics."""
        self._private = frozenset(norm_weights(network, self.keeps))
        if not self._private:
            what = "BatchNorm layer" if self.keeps == "layers" else "running statistics"
            raise InputError(
                f"personalization.keeps={self.keeps}: this model has no {what} to keep; "
                f"{USE_BATCH_NORM}"
            )

    def shared(self, name: str) -> bool:
        """Whether the weight is shared: all weights are, except the private ones."""
        return name not in self._private
