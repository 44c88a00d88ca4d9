"""Different backbones for different groups of clients."""

from collections.abc import Callable, Mapping
from types import MappingProxyType

import torch
from pydantic import BaseModel, PositiveFloat
from torch import Tensor, nn

from fedexp.config.build import STRICT, Node, build
from fedexp.config.compatibility.traits import DIFFERENT_NETWORKS, PRIVATE_BACKBONE
from fedexp.errors import InputError
from fedexp.models.shape import feature_dim


class ClientGroup(BaseModel):
    """A group of clients.

    Attributes:
        share: share of the group in the population, relative to the other groups' shares.
        model: ``_target_``, the function that builds the backbone, and its arguments.
    """

    model_config = STRICT

    share: PositiveFloat
    model: Node


class Mixed(nn.Module):
    """The backbones of all groups; a client uses and trains only the backbone of its group.

    The number of the client's group is a buffer, so the client's saved model contains it.

    Args:
        backbones: one backbone for each group, with features of the same width.
        shares: shares of the groups in the population. Their sum need not be 1.
    """

    traits = frozenset({DIFFERENT_NETWORKS})
    needs = MappingProxyType(
        {
            PRIVATE_BACKBONE: "model=mixed: clients have different backbones, which cannot be "
            "averaged; needs a personalization that shares no backbone: prototypes_only or local"
        }
    )
    group: Tensor

    def __init__(self, backbones: Mapping[str, nn.Module], shares: Mapping[str, float]) -> None:
        super().__init__()
        self.groups = nn.ModuleDict(backbones)
        self.shares = dict(shares)
        self.register_buffer("group", torch.zeros((), dtype=torch.int64))

    @property
    def variants(self) -> list[nn.Module]:
        """The backbones of all groups."""
        return list(self.groups.values())

    def begin_client(self, client: int) -> None:
        """Select the backbone of the client's group. Called before the client's training."""
        self.group.fill_(self.variant_of_clients(client + 1)[-1])

    def variant_of_clients(self, num_clients: int) -> list[int]:
        """For each client, the position of its backbone in ``variants``."""
        return groups_of_clients(num_clients, tuple(self.shares.values()))

    def forward(self, inputs: Tensor) -> Tensor:
        """Compute the features z [B, d] with the backbone of the current client."""
        z: Tensor = self.variants[int(self.group)](inputs)
        return z


def groups_of_clients(num_clients: int, shares: tuple[float, ...]) -> list[int]:
    """For each client the number of its group, from 0.

    Clients 0, 1, ... join groups one after another. Each client joins the group that lacks the most
    members to have its share of the clients so far. Among groups that lack equally many, the client
    joins the first. So for any n, the first n clients are divided according to the shares, up to
    rounding.
    """
    members, groups = [0] * len(shares), []
    for count in range(1, num_clients + 1):
        missing = [
            share * count / sum(shares) - n for share, n in zip(shares, members, strict=True)
        ]
        group = max(range(len(shares)), key=lambda index: missing[index])
        members[group] += 1
        groups.append(group)
    return groups


def mixed(input_shape: tuple[int, ...], groups: dict[str, ClientGroup]) -> Mixed:
    """Build a model that has one backbone for each group of clients.

    Args:
        input_shape: shape of one input.
        groups: name of a group -> its share and its backbone.

    Raises:
        InputError: a backbone does not fit the inputs, or the backbones' feature widths differ.
    """
    factories: dict[str, Callable[..., nn.Module]] = {
        name: build(f"model.groups.{name}.model", group.model, nn.Module, ("input_shape",))
        for name, group in groups.items()
    }
    widths = {name: feature_dim(each, input_shape) for name, each in factories.items()}
    if len(set(widths.values())) != 1:
        listed = ", ".join(f"{name} has {width}" for name, width in widths.items()) or "none"
        raise InputError(f"model.groups: need features of the same width; {listed}")
    backbones = {name: each(input_shape=input_shape) for name, each in factories.items()}
    return Mixed(backbones, {name: group.share for name, group in groups.items()})
