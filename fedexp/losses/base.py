"""What every loss is."""

from typing import ClassVar, NamedTuple

from torch import Tensor, nn

from fedexp.parts import Part


class Forward(NamedTuple):
    """One batch's forward pass: features z [B, d], logits [B, C], targets [B].

    ``real`` [B] is 1 for a sample and 0 for what only fills the batch up, so that batches of
    several lengths can be stacked; None if all are samples. Take means with ``mean``.
    """

    z: Tensor
    logits: Tensor
    targets: Tensor
    real: Tensor | None = None

    def mean(self, values: Tensor) -> Tensor:
        """Mean of ``values`` [B, ...] over the samples."""
        return mean_over(values, self.real)


def mean_over(values: Tensor, weights: Tensor | None) -> Tensor:
    """Mean of ``values`` [B, ...] over the first dimension with these weights [B].

    A value without weight may be anything, also infinite; without any weight the mean is 0.
    """
    if weights is None:
        return values.mean(dim=0)
    weights = weights.to(values.dtype).reshape(-1, *[1] * (values.dim() - 1))
    return (values.where(weights > 0, 0) * weights).sum(dim=0) / weights.sum().clamp(min=1)


class Loss(Part, nn.Module):
    """A scalar function of one batch's forward pass.

    What differs between clients must be a buffer (``persistent=False``: it is not part of the
    model), set in ``begin``; then the loss is a pure function of parameters, buffers and batch.

    Attributes:
        references: other models that the loss asks about the batch: ``forward`` gets their
            ``Outputs`` as keyword arguments of these names, and each costs one forward pass.
            ``client.references`` has them; before ``begin`` they are all the model that the client
            starts from. ``global`` stays that; ``previous`` is the loss's to set.
    """

    references: ClassVar[tuple[str, ...]] = ()

    def forward(self, batch: Forward) -> Tensor:
        """The loss, a scalar."""
        raise NotImplementedError
