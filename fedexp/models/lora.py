"""LoRA: trained low-rank updates of linear layers with fixed weights."""

from collections.abc import Sequence
from fnmatch import fnmatchcase
from math import sqrt

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrize import register_parametrization

from fedexp.errors import InputError


class LowRankUpdate(nn.Module):
    """Replaces a weight W [out, in] by W + scale B A (Hu et al., ICLR 2022, Section 4.1).

    The factors A [rank, in] and B [out, rank] are trained. At first A is random, as in the authors'
    code, and B is zero, so the layer's output does not change. The server averages A and B
    separately; their product is not the mean of the clients' updates.

    Args:
        weight: W. A and B get the dtype and device of W, and shapes that fit W.
        rank: number of rows of A, which is the largest possible rank of B A.
        scale: factor of B A; alpha / rank in the paper.
    """

    def __init__(self, weight: Tensor, rank: int, scale: float) -> None:
        super().__init__()
        outputs, inputs = weight.shape
        self.scale = scale
        self.A = nn.Parameter(weight.new_empty(rank, inputs))
        self.B = nn.Parameter(weight.new_zeros(outputs, rank))
        nn.init.kaiming_uniform_(self.A, a=sqrt(5))

    def forward(self, weight: Tensor) -> Tensor:
        """Add the low-rank update: compute W + scale B A for the fixed weight W."""
        return torch.addmm(weight, self.B, self.A, alpha=self.scale)


def add_low_rank_updates(
    backbone: nn.Module, rank: int, alpha: float, targets: Sequence[str]
) -> None:
    """Add trained low-rank updates to linear layers, and fix the weight matrices of these layers.

    Each of these layers then has three tensors in place of its weight. The tensor
    ``parametrizations.weight.original`` is the fixed weight. The tensors
    ``parametrizations.weight.0.A`` and ``parametrizations.weight.0.B`` are trained. In the
    backbone, the name of the layer precedes these names.

    Args:
        backbone: the network whose linear layers get updates. It is changed in place.
        rank: rank of the updates.
        alpha: the scale of an update is alpha / rank.
        targets: patterns of names, with ``*`` and ``?``. Linear layers whose names match a pattern
            get an update.

    Raises:
        InputError: a pattern matches no linear layer, or the rank exceeds the smaller width of a
            layer.
    """
    linear = {n: each for n, each in backbone.named_modules() if isinstance(each, nn.Linear)}
    for target in targets:
        if not any(fnmatchcase(name, target) for name in linear):
            raise InputError(
                f"model.lora.targets={target}: no linear layer of the backbone has such a name; "
                f"there are {_listed(list(linear))}"
            )
    for name, layer in linear.items():
        if not any(fnmatchcase(name, target) for target in targets):
            continue
        if rank > min(layer.weight.shape):
            raise InputError(
                f"model.lora.rank={rank}: is above the smaller width of {name}, "
                f"{list(layer.weight.shape)}; use a smaller rank, or other model.lora.targets"
            )
        layer.weight.requires_grad_(False)
        update = LowRankUpdate(layer.weight, rank, alpha / rank)
        register_parametrization(layer, "weight", update)


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(names[:8]) or "none"
    return f"{shown} and {len(names) - 8} more" if len(names) > 8 else shown
