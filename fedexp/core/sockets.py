"""The contracts of the sockets: what a head, a loss, a regularizer, ... adds to a part.

The base classes ``Regularizer`` and ``Personalization`` do nothing; they are ``regularizer=none``
and ``personalization=none``. A sampler's contract is in ``fedexp.samplers.base``.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor, nn

from fedexp.core.forward import Forward
from fedexp.core.messages import Tensors, Update
from fedexp.core.part import Part
from fedexp.distributed.ranks import Contribution


class Head(Part, nn.Module):
    """Features z [B, d] to logits [B, C].

    A head is built with ``feature_dim`` and ``num_classes`` and then its own hyper-parameters.

    Attributes:
        derived: names of the head's persistent buffers that ``receive`` and ``begin`` set. They
            belong to a model (its checkpoint, a client's personal model) but are not sent with
            its weights and are not averaged.
    """

    derived: ClassVar[tuple[str, ...]] = ()

    def forward(self, z: Tensor) -> Tensor:
        """Logits [B, C] of features ``z`` [B, d]."""
        raise NotImplementedError

    def normalize(self, z: Tensor) -> Tensor:
        """The features [B, d] that the weight matrix is applied to, for geometry: here z itself."""
        return z

    def prototypes(self) -> Tensor | None:
        """One vector for each class, [C, d], if the head has a weight matrix: for the heatmap."""
        return None


class Loss(Part, nn.Module):
    """A scalar function of one batch's forward pass.

    What differs between clients must be a buffer (``persistent=False``: it is not part of the
    model), set in ``begin``; then the loss is a pure function of parameters, buffers and batch.

    Attributes:
        reference_models: names of other models that the loss compares with: ``forward`` gets their
            ``Outputs`` on the batch as keyword arguments of these names, and each costs one forward
            pass. ``client.frozen_copies`` has them; before ``begin`` all are the model that the
            client starts from. ``global`` stays that; ``previous`` is set by the loss.
        levels: whether ``Forward.levels`` is wanted. It comes from the backbone's
            ``forward_levels(inputs) -> (z, levels)``; a backbone without that method has one
            level, z.
    """

    reference_models: ClassVar[tuple[str, ...]] = ()
    levels: ClassVar[bool] = False

    def forward(self, batch: Forward) -> Tensor:
        """The loss, a scalar."""
        raise NotImplementedError


class Regularizer(Part, nn.Module):
    """A scalar function of the trained parameters, added to the loss; the base class adds 0.

    A term whose gradient ``local.grad_clip`` must not clip has its gradient in
    ``unclipped_gradient`` instead.
    """

    takes_tokens = True

    def forward(self, parameters: Iterable[tuple[str, Tensor]]) -> Tensor | float:
        """The penalty, given the (name, parameter) pairs that are being trained."""
        return 0.0

    def unclipped_gradient(self, parameters: Iterable[tuple[str, Tensor]]) -> Tensors:
        """Name -> what is added to the gradient of a trained parameter after clipping.

        A pure function of parameters and buffers. As with weight decay, the term that it is the
        gradient of is no part of the logged loss.
        """
        return {}


@dataclass(frozen=True)
class Phase:
    """A part of local training: its number of epochs, and which parameters are trained.

    Attributes:
        epochs: passes over the client's data.
        trainable: name prefixes of the parameters that are trained ("backbone.", "head."); the
            others are frozen.
        eval_mode: name prefixes of submodules in eval mode: no dropout, and BatchNorm uses its
            running statistics and does not update them.
        plain_sgd: whether it is trained by SGD without momentum and weight decay, at the learning
            rate of the local optimizer, instead of by that optimizer.
        clipped: whether ``local.grad_clip`` clips its gradients.
    """

    epochs: int
    trainable: tuple[str, ...] = ("",)
    eval_mode: tuple[str, ...] = ()
    plain_sgd: bool = False
    clipped: bool = True


class Personalization(Part, nn.Module):
    """What is shared, how a client trains, and what its personal model is.

    The base class shares and trains all weights at once; a client's personal model is its latest
    local model: the global weights of that round after local training, with its private weights.

    Parameters of a personalization are in the client's model under ``personalization.<name>``.

    Attributes:
        has_global: whether the shared weights together with the initial private ones are a model
            to be evaluated. If not, nothing global is measured.
        tunes_local: whether ``tuning`` starts from the client's latest local model instead of the
            present global one.
        tunes_best: whether ``tuning`` starts from the best global model of all rounds. Personal
            models are then scored after the last round only, with and without tuning.
        scores_head: whether a personal model's head, whose logits ``personalize`` replaces, is
            scored beside it, as ``personal/accuracy_head_*``.
    """

    takes_tokens = True
    has_global: bool = True
    tunes_local: bool = False
    tunes_best: bool = False
    scores_head: ClassVar[bool] = False

    def create(self, feature_dim: int, num_classes: int, head: Head) -> None:
        """Make the parameters of its own, if it has any; called once, before ``setup``.

        ``head`` is the generic head with its initial weights.
        """

    def check(self, head: Head, loss: Loss) -> None:
        """Raises InputError if it cannot work with this head or loss."""

    def shared(self, name: str) -> bool:
        """Whether the weight with this name is shared; the others are private to the client."""
        return True

    def phases(self, epochs: int) -> Sequence[Phase]:
        """The phases of one round's local training; ``epochs`` is ``local.epochs``."""
        return (Phase(epochs),)

    def personal_phases(self, epochs: int) -> Sequence[Phase]:
        """The phases of a separate personal model, trained after the shared one; empty for none.

        It starts from the initial weights, trains on the same batches, is the client's personal
        model, and is never sent.
        """
        return ()

    def tuning(self) -> Sequence[Phase]:
        """Training on the client's data before a personal evaluation; none here.

        It takes the learning rate and the batches of the round after the tuned model's.
        If there is any, the personal model is the present global model, the latest local one
        (``tunes_local``) or the best global one (``tunes_best``), after these phases. It is not
        kept.
        """
        return ()

    def class_vectors(self) -> Tensor | None:
        """One vector for each class, [C, d], if such predict in place of the head: for the heatmap.

        Zero for a class that has none. Called after ``receive``.
        """
        return None

    # Terms of the objective: pure functions of parameters, buffers and batch.

    def term(self, batch: Forward) -> Tensor | float:
        """Added to the loss, a scalar."""
        return 0.0

    def pull(self, parameters: Iterable[tuple[str, Tensor]]) -> Tensor | float:
        """Replaces the regularizer while a personal model is trained or tuned, a scalar."""
        return 0.0

    def unclipped_gradient(self, parameters: Iterable[tuple[str, Tensor]]) -> Tensors:
        """Replaces the regularizer's of this name while a personal model is trained or tuned."""
        return {}

    def personalize(self, z: Tensor, logits: Tensor) -> Tensor:
        """The personal model's logits [B, C], given its features z [B, d] and its head's logits."""
        return logits


class Aggregator(Part):
    """Turns a cohort's weights into the next global weights.

    ``add`` gets the updates as they arrive. An average adds each one up, so that a cohort of any
    size needs the memory of one model; a rule that compares updates keeps them until ``merge``.
    """

    takes_tokens = True

    def add(self, update: Update, current: Tensors) -> None:
        """Add one update; ``current`` are the global weights that it started from."""
        raise NotImplementedError

    def contribution(self) -> Contribution:
        """This rank's updates so far, in a run of several ranks; see ``Reducible``."""
        raise NotImplementedError

    def set_reduced(self, sums: Tensors, items: Sequence[Any]) -> None:
        """Replace this rank's updates by those of all ranks; see ``Reducible``."""
        raise NotImplementedError

    def merge(self, current: Tensors) -> Tensors:
        """The next global weights, given the current ones; then starts over for the next round.

        Without any update the result is ``current``.
        """
        raise NotImplementedError
