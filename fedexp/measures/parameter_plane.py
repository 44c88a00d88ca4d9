"""Planes through models: a model with D parameters is a point in a space of D dimensions."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Generator, Tensor

from fedexp.core.messages import Tensors

_PARALLEL = 1e-3
"""A direction is skipped if at most this share of its norm is perpendicular to the earlier axes."""


@dataclass(frozen=True)
class ParameterPlane:
    """The plane of the points origin + x basis_0 + y basis_1 in the space of parameters.

    The basis is orthonormal, so two points have the same distance in (x, y) as in this space.

    Attributes:
        origin: name -> tensor, the model at x = y = 0.
        basis: [2, D] the two orthonormal axes. The D parameters are in the order of ``origin``.
        is_random: for each of the two axes, whether this axis is a random direction.
    """

    origin: Tensors
    basis: Tensor
    is_random: tuple[bool, bool]

    def at(self, x: float, y: float) -> Tensors:
        """The parameters of the model at the point (x, y)."""
        step = x * self.basis[0] + y * self.basis[1]
        pieces = torch.split(step, [each.numel() for each in self.origin.values()])
        return {
            name: each + piece.view(each.shape)
            for (name, each), piece in zip(self.origin.items(), pieces, strict=True)
        }

    def project(self, parameters: Tensors) -> tuple[float, float]:
        """The (x, y) of the point in the plane that is nearest to these parameters."""
        x, y = (self.basis @ _difference(parameters, self.origin)).tolist()
        return x, y


def plane_through(
    origin: Tensors, others: Sequence[Tensors], generator: Generator
) -> ParameterPlane:
    """The plane through the model ``origin`` and at most two other models.

    If there are fewer than two other models, or if all models are on one line, random directions of
    ``filter_normalized`` complete the basis.

    Args:
        origin: name -> parameter.
        others: the other models, with parameters of the same names.
        generator: source of the random directions.
    """
    given = [_difference(each, origin) for each in others]
    drawn = [flatten(filter_normalized(origin, generator)) for _ in range(2)]
    axes: list[Tensor] = []
    is_random: list[bool] = []
    for random, direction in [*((False, d) for d in given), *((True, d) for d in drawn)]:
        across = direction - sum((axis @ direction) * axis for axis in axes)
        if len(axes) < 2 and across.norm() > _PARALLEL * direction.norm():
            axes.append(across / across.norm())
            is_random.append(random)
    return ParameterPlane(origin, torch.stack(axes), (is_random[0], is_random[1]))


def filter_normalized(parameters: Tensors, generator: Generator) -> Tensors:
    """A random Gaussian direction, scaled to the parameters (Li et al., NeurIPS 2018, Section 4).

    In the direction, each filter of a convolution and each row of a matrix has the same norm as in
    ``parameters``. For parameters with one dimension, such as biases, the direction is 0.
    """
    direction = {}
    for name, value in parameters.items():
        noise = torch.randn(value.shape, generator=generator).to(value)
        if value.ndim < 2:
            direction[name] = torch.zeros_like(value)
            continue
        lengths = value.flatten(1).norm(dim=1) / noise.flatten(1).norm(dim=1)
        direction[name] = noise * lengths.view(-1, *[1] * (value.ndim - 1))
    return direction


def flatten(parameters: Tensors) -> Tensor:
    """All D parameters in order, as one vector [D]."""
    return torch.cat([each.detach().flatten() for each in parameters.values()])


def _difference(end: Tensors, start: Tensors) -> Tensor:
    return flatten({name: end[name].to(value) - value for name, value in start.items()})
