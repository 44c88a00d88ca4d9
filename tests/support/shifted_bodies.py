"""A backbone and a personalization for the tests of feature shift."""

from collections.abc import Sequence

from torch import nn

from fedexp.contract import Phase
from fedexp.personalization.private_norm import PrivateNorm


def small_cnn(input_shape: tuple[int, ...]) -> nn.Module:
    """Two convolutions with BatchNorm and a linear layer, for 8x8 images."""
    channels = input_shape[0]
    return nn.Sequential(
        *(nn.Conv2d(channels, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(128, 64), nn.BatchNorm1d(64), nn.ReLU()),
    )


class ReceivedNorm(PrivateNorm):
    """FedBN as its authors score it: the new shared weights with the client's own BatchNorm."""

    def tuning(self) -> Sequence[Phase]:
        """One phase without epochs: nothing is trained before a model is scored."""
        return (Phase(0),)
