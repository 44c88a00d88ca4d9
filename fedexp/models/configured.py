"""Build a backbone as configured: initial weights, trained layers, LoRA, several side by side."""

import inspect
from collections.abc import Callable
from functools import wraps

import torch
from torch import Tensor, nn

from fedexp.config.schema import Model
from fedexp.errors import InputError
from fedexp.models.init import initialize
from fedexp.models.lora import add_low_rank_updates
from fedexp.models.trained import HEAD, split_paths, train_head, train_layers
from fedexp.models.weights import load_file


class Several(nn.Module):
    """Concatenates the features that several backbones compute from the same inputs."""

    def __init__(self, backbones: list[nn.Module]) -> None:
        super().__init__()
        self.members = nn.ModuleList(backbones)
        self.traits: frozenset[str] = getattr(backbones[0], "traits", frozenset())

    def forward(self, inputs: Tensor) -> Tensor:
        """Concatenate the features [B, d] of each of M backbones to z [B, M d]."""
        return torch.cat([member(inputs) for member in self.members], dim=-1)


def several(build: Callable[..., nn.Module], count: int) -> Callable[..., nn.Module]:
    """Make a function that builds ``count`` backbones side by side.

    The random initial weights of the backbones differ.

    Args:
        build: builds one backbone; it has the argument ``input_shape``.
        count: number of backbones. If it is 1, the result is ``build``.
    """
    if count == 1:
        return build

    @wraps(build)
    def side_by_side(input_shape: tuple[int, ...]) -> nn.Module:
        return Several([build(input_shape=input_shape) for _ in range(count)])

    return side_by_side


def configured(build: Callable[..., nn.Module], config: Model) -> Callable[..., nn.Module]:
    """Make a function that builds a backbone and applies the keys of ``config`` to it.

    These keys are ``init``, ``start_from``, ``train`` and ``lora``.

    Args:
        build: builds the backbone with all hyper-parameters already set. It may have the argument
            ``input_shape``.
        config: the group ``model`` of the run's config.

    Returns:
        A function of ``input_shape`` alone that returns the backbone. The function raises
        InputError if a key does not fit the backbone.
    """
    takes_shape = "input_shape" in inspect.signature(build).parameters

    @wraps(build)
    def finished(input_shape: tuple[int, ...]) -> nn.Module:
        backbone = build(input_shape=input_shape) if takes_shape else build()
        if not isinstance(backbone, nn.Module):
            raise InputError(f"model._target_: returns a {type(backbone).__name__}, no nn.Module")
        initialize(backbone, config.init)
        if config.start_from is not None:
            where = f"model.start_from={config.start_from}"
            load_file(backbone, config.start_from, where, "the backbone")
        if (paths := trained_paths(config)) is not None:
            train_layers(backbone, split_paths(paths)[0])
        if config.lora.rank is not None:
            add_low_rank_updates(backbone, config.lora.rank, config.lora.alpha, config.lora.targets)
        return backbone

    return finished


def configure_head(head: nn.Module, config: Model) -> None:
    """Apply ``model.init`` and ``model.train`` to the head, in place."""
    initialize(head, config.init)
    if (paths := trained_paths(config)) is not None:
        train_head(head, split_paths(paths)[1])


def trained_paths(config: Model) -> list[str] | None:
    """The paths of the layers that train, such as ``backbone.layer4``, or None for all layers.

    With LoRA and without ``model.train``, the result is ``["head"]``: besides the low-rank updates,
    only the head trains.
    """
    if config.train is None and config.lora.rank is not None:
        return [HEAD]
    return config.train
