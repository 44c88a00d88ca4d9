"""Tools of the normalised heads: cosine logits, and arrangements of C unit vectors."""

import math

import numpy as np
import torch
import torch.nn.functional as F
from pydantic import PositiveFloat
from torch import Generator, Tensor, nn

from fedexp.config.schema import Group

TEMPERATURES = (10, 30, 100, 300, 1000, 3000)
"""The values of the factor t in ``spread``, in order."""


class Scale(Group):
    """The scale s: the factor of the cosines in the logits.

    Attributes:
        init: the initial value.
        trainable: whether s is trained and averaged like a weight; otherwise it is constant.
    """

    init: PositiveFloat
    trainable: bool

    def build(self) -> nn.Parameter | float:
        """Make s: a scalar parameter if it is trainable, else a constant."""
        return nn.Parameter(torch.tensor(self.init)) if self.trainable else self.init


def cosine_logits(z: Tensor, directions: Tensor, scale: Tensor | float) -> Tensor:
    """Logits [B, C]: s * cosine of features ``z`` [B, d] and unit rows ``directions`` [C, d].

    A feature whose norm is below 1e-12 is divided by 1e-12, not by its norm.
    """
    return scale * F.linear(F.normalize(z, eps=1e-12), directions)


def random_directions(num_classes: int, dim: int, generator: Generator | None = None) -> Tensor:
    """Draw C independent uniform points [C, d] on the unit sphere."""
    return F.normalize(torch.randn(num_classes, dim, generator=generator))


def orthogonal_directions(num_classes: int, dim: int, generator: Generator | None = None) -> Tensor:
    """Unit rows [C, d]: a random orthonormal set if C <= d, else rows of a random tight frame.

    For C > d the columns of a random [C, d] matrix are made orthonormal. Then its rows are
    normalised.
    """
    return F.normalize(_orthogonal(num_classes, dim, generator)).float()


def simplex(num_classes: int, dim: int, generator: Generator | None = None) -> Tensor:
    """The corners [C, d] of a randomly rotated regular simplex, as unit vectors. Needs d >= C - 1.

    The Helmert matrix H [C-1, C] has orthonormal rows that are orthogonal to the all-ones vector 1,
    so H^T H = I - 11^T/C. If U [C-1, d] has orthonormal rows, the rows of H^T U have the inner
    products I - 11^T/C of a simplex.
    """
    from scipy.linalg import helmert  # slow to import

    corners = torch.from_numpy(helmert(num_classes)).T
    return F.normalize(corners @ _orthogonal(num_classes - 1, dim, generator)).float()


def circle(num_classes: int, generator: Generator | None = None) -> Tensor:
    """C evenly spaced points [C, 2] on the unit circle; the first point is random."""
    steps = torch.arange(num_classes) + torch.rand(1, generator=generator)
    angles = 2 * math.pi / num_classes * steps
    return torch.stack((angles.cos(), angles.sin()), dim=1)


def cross_polytope(num_classes: int, dim: int, generator: Generator | None = None) -> Tensor:
    """C corners [C, d] of a randomly rotated cross-polytope.

    They are the first C of the 2d vectors +u_1, ..., +u_d, -u_1, ..., -u_d of a random orthonormal
    basis u.
    """
    basis = _orthogonal(dim, dim, generator)
    return torch.cat((basis, -basis))[:num_classes].float()


def spread(directions: Tensor) -> Tensor:
    """Spread unit rows [C, d] until their largest pairwise cosine is a local minimum.

    Starting from ``directions``, L-BFGS minimises the smooth maximum
    log(sum_{i != j} exp(t cos_ij)) / t for growing t. cos_ij is the cosine of rows i and j. This
    takes 1 to 2 seconds for C = 200 on one core.
    """
    from scipy.optimize import minimize  # slow to import

    diagonal = torch.eye(len(directions), dtype=torch.bool)

    def smooth_maximum(flat: np.ndarray, temperature: int) -> tuple[float, np.ndarray]:
        """The smooth maximum for t = ``temperature``, and its gradient."""
        points = torch.from_numpy(flat).view(directions.shape).requires_grad_()
        rows = F.normalize(points)
        cosines = torch.where(diagonal, -torch.inf, rows @ rows.T)
        worst = torch.logsumexp(temperature * cosines.flatten(), dim=0) / temperature
        (gradient,) = torch.autograd.grad(worst, points)
        return worst.item(), gradient.flatten().numpy()

    flat = directions.double().flatten().numpy()
    for temperature in TEMPERATURES:
        flat = minimize(smooth_maximum, flat, args=(temperature,), jac=True, method="L-BFGS-B").x
    return F.normalize(torch.from_numpy(flat).view(directions.shape)).float()


def _orthogonal(rows: int, columns: int, generator: Generator | None) -> Tensor:
    """A random float64 matrix [rows, columns] with orthonormal rows.

    If there are fewer columns than rows, its columns are orthonormal instead.
    """
    empty = torch.empty(rows, columns, dtype=torch.float64)
    return nn.init.orthogonal_(empty, generator=generator)
