"""Small federations for the tests of compression."""

import torch

from fedexp.core.messages import Tensors

SMALL = ["clients.count=4", "clients.per_round=4", "data.subset=120", "local.epochs=1"]
SMALL += ["objective=train/loss"]
SMALL += [f"measure.{name}=null" for name in ("personal", "prototypes", "partition", "angles")]
BATCHNORM = ["model.batch_norm=true"]


def equal(a: Tensors, b: Tensors) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)
