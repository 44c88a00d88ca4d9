"""Different backbones in different groups of clients."""

from collections.abc import Callable, Mapping
from types import MappingProxyType

import torch
from pydantic import BaseModel, PositiveFloat
from torch import Tensor, nn

from fedexp.config.build import STRICT, Node, build
from fedexp.core.compatibility import PRIVATE_BACKBONE
from fedexp.errors import InputError
from fedexp.models.shape import feature_dim


class ClientGroup(BaseModel):
    """A group of clients.

    Attributes:
        share: its share of the population, relative to the other groups'.
        model: ``_target_`` of its backbone's factory and the arguments.
    """

    model_config = STRICT

    share: PositiveFloat
    model: Node


class Mixed(nn.Module):
    """The backbones of all groups, of which a client uses and trains its own.

    The number of the client's group is a buffer, so that it is stored with the client's model.

    Args:
        backbones: one for each group, with features of the same width.
        shares: of the groups; they need not add up to 1.
    """

    needs = MappingProxyType(
        {
            PRIVATE_BACKBONE: "model=mixed: clients have different backbones, so that none can be "
            "averaged; needs a personalization that shares no backbone: prototypes_only or local"
        }
    )
    group: Tensor

    def __init__(self, backbones: Mapping[str, nn.Module], shares: Mapping[str, float]) -> None:
        super().__init__()
        self.groups = nn.ModuleDict(backbones)
        self.shares = dict(shares)
        self.register_buffer("group", torch.zeros((), dtype=torch.int64))

    def begin_client(self, client: int) -> None:
        """Use the backbone of this client's group; the client calls this before its training."""
        self.group.fill_(group_of(client, tuple(self.shares.values())))

    def forward(self, inputs: Tensor) -> Tensor:
        """z [B, d] of the present client's backbone."""
        z: Tensor = list(self.groups.values())[int(self.group)](inputs)
        return z

    def prepare_for_vmap(self) -> None:
        """Raises InputError: different networks cannot be stacked."""
        raise InputError(
            "engine=vectorized: model=mixed has different networks, which cannot be stacked; use "
            "engine=serial"
        )


def group_of(client: int, shares: tuple[float, ...]) -> int:
    """The number of this client's group; the groups take turns as their shares say.

    Each client in turn joins the group that is furthest below its share of the clients so far, the
    first of these if there are several. So any first clients are divided like the whole population.
    """
    members = [0] * len(shares)
    group = 0
    for count in range(1, client + 2):
        missing = [
            share * count / sum(shares) - n for share, n in zip(shares, members, strict=True)
        ]
        group = max(range(len(shares)), key=lambda index: missing[index])
        members[group] += 1
    return group


def mixed(input_shape: tuple[int, ...], groups: dict[str, ClientGroup]) -> Mixed:
    """A backbone for each group of clients.

    Args:
        input_shape: shape of one input.
        groups: name -> share and backbone.

    Raises:
        InputError: a backbone does not fit the inputs, or the widths of their features differ.
    """
    factories: dict[str, Callable[..., nn.Module]] = {
        name: build(f"model.groups.{name}.model", group.model, supplied=("input_shape",))
        for name, group in groups.items()
    }
    widths = {name: feature_dim(each, input_shape) for name, each in factories.items()}
    if len(set(widths.values())) != 1:
        found = ", ".join(f"{name} has {width}" for name, width in widths.items()) or "none"
        raise InputError(f"model.groups: need features of the same width; {found}")
    backbones = {name: each(input_shape=input_shape) for name, each in factories.items()}
    return Mixed(backbones, {name: group.share for name, group in groups.items()})
