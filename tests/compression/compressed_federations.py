"""Small federations for the tests of compression."""

import torch
from torch import nn

from fedexp.core.messages import Tensors

SMALL = ["clients.count=4", "clients.per_round=4", "data.subset=120", "local.epochs=1"]
SMALL += ["objective=train/loss"]
SMALL += [f"measure.{name}=null" for name in ("personal", "prototypes", "partition", "angles")]
BATCHNORM = ["model._target_=compressed_federations.with_running_statistics"]
BATCHNORM += ["~model.hidden", "~model.feature_dim", "~model.rectify"]


def with_running_statistics(input_shape: tuple[int, ...]) -> nn.Module:
    """A tiny body with a BatchNorm."""
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.BatchNorm1d(8), nn.ReLU())


def equal(a: Tensors, b: Tensors) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)
