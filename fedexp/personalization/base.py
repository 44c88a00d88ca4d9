"""What every personalization is; the base class itself is ``personalization=none``."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from torch import Tensor, nn

from fedexp.parts import Part

if TYPE_CHECKING:
    from fedexp.heads.base import Head
    from fedexp.losses.base import Forward, Loss


@dataclass(frozen=True)
class Phase:
    """A stretch of local training: how many epochs, and which part of the model moves.

    Attributes:
        epochs: passes over the client's data.
        trains: name prefixes of the parameters that move ("backbone.", "head."); the rest is
            frozen.
        still: name prefixes of submodules that are in eval mode meanwhile: no dropout, and
            BatchNorm uses its running statistics and leaves them as they are.
    """

    epochs: int
    trains: tuple[str, ...] = ("",)
    still: tuple[str, ...] = ()


class Personalization(Part, nn.Module):
    """What is shared, how a client trains, and what its personal model is.

    The base class shares everything and trains everything at once; a client's personal model is its
    latest local model: the global weights of that round after local training, with what is private.

    Parameters of its own belong to the client's model under the name ``personalization.<name>``.

    Attributes:
        has_global: whether the shared weights, with what every client starts from for the others,
            are a model that can be scored. If not, nothing global is measured.
    """

    has_global: ClassVar[bool] = True

    def create(self, feature_dim: int, num_classes: int) -> None:
        """Make the parameters of its own, if it has any; called once, before ``setup``."""

    def check(self, head: Head, loss: Loss) -> None:
        """Raises InputError if it cannot work with these."""

    def shared(self, name: str) -> bool:
        """Whether the weight with this name travels; what does not stays with the client."""
        return True

    def phases(self, epochs: int) -> Sequence[Phase]:
        """The phases of one round's local training; ``epochs`` is ``local.epochs``."""
        return (Phase(epochs),)

    def own_phases(self, epochs: int) -> Sequence[Phase]:
        """Those of a whole model of the client's own, trained beside the shared one; none here.

        It starts from the initial weights, sees the same batches after the shared model has, is
        the client's personal model, and never leaves it.
        """
        return ()

    def tuning(self) -> Sequence[Phase]:
        """What becomes of the global model at a client before it is scored there; none here.

        If there is any, the personal model is the present global model tuned so. It is not kept.
        """
        return ()

    # What enters the objective: pure functions of parameters, buffers and batch.

    def term(self, batch: Forward) -> Tensor | float:
        """Added to the loss, a scalar."""
        return 0.0

    def pull(self, parameters: Iterable[tuple[str, Tensor]]) -> Tensor | float:
        """Takes the regularizer's place while a model of the client's own is trained or tuned."""
        return 0.0

    def personalize(self, z: Tensor, logits: Tensor) -> Tensor:
        """The personal model's logits [B, C], given its features z [B, d] and its head's logits."""
        return logits
