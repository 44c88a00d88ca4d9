"""The contracts of the sockets: the hooks that a head, a loss, ... adds to the hooks of a part.

The base classes ``Regularizer``, ``LocalGradient`` and ``Personalization`` change nothing; they are
the options ``regularizer=none``, ``gradient=plain`` and ``personalization=none``.
``fedexp.samplers.base`` has the contract of a sampler. A hook that is an ``abstractmethod`` has no
default: ``fedexp.config.constructed`` refuses a class without it.
"""

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, Literal, TypeVar

from torch import Tensor, nn

from fedexp.core.client_protocol import Client, GradientAt
from fedexp.core.forward import Forward
from fedexp.core.messages import PartMessage, Tensors, Update
from fedexp.core.part import Part
from fedexp.core.reducible import Contribution


class Head(Part, nn.Module):
    """The classifier of a model: turns features z [B, d] into logits [B, C].

    The constructor takes ``feature_dim`` and ``num_classes``, then the hyper-parameters.

    Attributes:
        derived: names of the persistent buffers that ``receive`` and ``begin`` set. They are saved
            with a model (checkpoints, personal models) but neither sent with the weights nor
            averaged.
        backbones: number of backbones. Each has different initial weights, and features of width
            ``feature_dim``. z [B, backbones * feature_dim] is the concatenation of their features.
        before_output: names of the layers in front of the output layer.
    """

    derived: tuple[str, ...] = ()
    backbones: int = 1
    before_output: tuple[str, ...] = ()

    @abstractmethod
    def forward(self, z: Tensor) -> Tensor:
        """Logits [B, C] for C classes, given the features ``z`` [B, d] of B samples."""
        raise NotImplementedError

    def normalize(self, z: Tensor) -> Tensor:
        """The features [B, d] that the weight matrix multiplies, for the measure of geometry.

        By default they are ``z`` itself.
        """
        return z

    def prototypes(self) -> Tensor | None:
        """One vector for each class, [C, d], for the heatmap; None without a weight matrix."""
        return None


@dataclass(frozen=True)
class Network:
    """The network that clients train, before the first round.

    Attributes:
        backbone: the layers with their names and types, but without values of the weights (they
            are on PyTorch's meta device).
        head: the part in the head socket, with its initial weights.
        feature_dim: d, the width of the features.
        num_classes: C.
    """

    backbone: nn.Module
    head: Head
    feature_dim: int
    num_classes: int

    def layers(self) -> Iterator[tuple[str, nn.Module]]:
        """(name, layer) pairs; a layer's weights are called ``name.weight`` and so on."""
        for part in ("backbone", "head"):
            yield from getattr(self, part).named_modules(prefix=part)


class Loss(Part, nn.Module):
    """A scalar function of one batch's forward pass.

    Keep data that differ between clients in buffers (``persistent=False``: they are not part of the
    model) and set them in ``begin``. Then the loss is a pure function of parameters, buffers and
    batch.

    Parameters of a loss are trained, sent and averaged like the model's. In the client's model they
    are called ``loss.<name>``.

    Attributes:
        reference_models: names of frozen models that the loss compares the trained model with.
            ``forward`` gets each model's ``Reference`` on the batch as a keyword argument with the
            model's name; each model costs a forward pass. The models are in
            ``client.frozen_copies``. Before ``begin`` all of them have the weights that the client
            starts from; for a separate personal model, the received weights. The model ``global``
            keeps these weights; the loss may load other weights into the model ``previous``.
        takes_own_model: whether ``forward`` gets the outputs of the client's own model, with their
            gradients, as the keyword argument ``own``. The own model is that of the
            personalization, ``Personalization.own_parameters``.
        levels: whether the loss needs ``Forward.levels``, from the backbone's
            ``forward_levels(inputs) -> (z, levels)``. A backbone without that method has one
            level, z. It is declared, because other losses should not pay for levels.
        of_personal: arguments that only act on a personal model that is tuned or trained
            separately. A run without one says so if they are typed.
    """

    reference_models: ClassVar[tuple[str, ...]] = ()
    takes_own_model: ClassVar[bool] = False
    levels: ClassVar[bool] = False
    of_personal: ClassVar[frozenset[str]] = frozenset()

    def create(self, network: Network) -> None:
        """Create the loss's own parameters; called once, before ``setup``.

        This is a hook, because the constructor does not know the network, and in ``setup`` it is
        too late: the setting lists all parameters.
        """

    @abstractmethod
    def forward(self, batch: Forward) -> Tensor:
        """The loss, a scalar."""
        raise NotImplementedError


class Regularizer(Part, nn.Module):
    """A scalar function of the trained parameters, added to the loss; the base class adds 0.

    If ``local.grad_clip`` must not clip a term's gradient, put the gradient into
    ``unclipped_gradient`` instead.
    """

    takes_tokens = True

    def forward(self, parameters: Iterable[tuple[str, Tensor]]) -> Tensor | float:
        """The penalty on the (name, parameter) pairs that are being trained."""
        return 0.0

    def unclipped_gradient(self, parameters: Iterable[tuple[str, Tensor]]) -> Tensors:
        """Name -> term to add to the gradient of a trained parameter after clipping.

        A pure function of parameters and buffers. As with weight decay, the logged loss does not
        include the penalty that this gradient belongs to.
        """
        return {}


class LocalGradient(Part, nn.Module):
    """The rule for a local step's gradient; the base class computes it at the current weights.

    The rule acts on the shared model, not on a separate personal model or on tuning.
    """

    takes_tokens = True

    @property
    def is_plain(self) -> bool:
        """Whether steps use the gradient of the whole batch at the current weights."""
        return type(self).forward is LocalGradient.forward

    def forward(self, parameters: Tensors, own: Tensors, gradient_at: GradientAt) -> Tensors:
        """The gradient of one step: name -> tensor. A parameter that is absent gets no gradient.

        A pure function of the arguments and of buffers. Clipping and
        ``Regularizer.unclipped_gradient`` follow.

        Args:
            parameters: name -> trained parameter, without gradient.
            own: name -> gradient of the objective at ``parameters`` on the whole batch; parameters
                that the objective does not use are absent.
            gradient_at: the gradient at other parameters, or on a part of the batch.
        """
        return own


@dataclass(frozen=True)
class Phase:
    """A section of local training: its number of epochs and its trained parameters.

    Attributes:
        epochs: passes over the client's data. A fraction is rounded to steps, at least one. 0 in
            ``Personalization.tuning`` trains nothing.
        trainable: name prefixes of the trained parameters ("backbone.", "head.", "loss.",
            "personalization."); the others are frozen.
        eval_mode: name prefixes of submodules in eval mode: no dropout, and BatchNorm uses its
            running statistics and does not update them.
        plain_sgd: whether to replace the local optimizer by SGD with the same learning rate,
            without momentum and weight decay.
        clipped: whether ``local.grad_clip`` applies.
    """

    epochs: float
    trainable: tuple[str, ...] = ("",)
    eval_mode: tuple[str, ...] = ()
    plain_sgd: bool = False
    clipped: bool = True


class Personalization(Part, nn.Module):
    """Chooses the shared weights, the phases of local training, and the personal model.

    The base class shares all weights and trains them in one phase. A client's personal model is
    then its latest local model: the result of its last local training, private weights included.

    Parameters of a personalization are in the client's model under ``personalization.<name>``.

    Attributes:
        private_names: beginnings of the names of the weights that stay with each client, for
            ``shared``.
        has_global: whether the shared weights and the initial private weights form a model that is
            worth evaluating. If not, the global model is not measured.
        tunes: the model that ``tuning`` starts from: the current global model, the client's latest
            local model, or the best global model of all rounds. With ``best``, personal models are
            scored only after the last round, once with and once without tuning.
        serves_newcomers: whether ``tuning`` gives a client that has never trained a model of its
            own. If false, the measure ``held_out`` scores no tuned models.
        penalty: the regularizer of a separate personal model; see ``personal_phases``.
    """

    takes_tokens = True
    takes_only_merged = True  # this class's own hooks do nothing
    private_names: tuple[str, ...] = ()
    has_global: bool = True
    tunes: Literal["global", "local", "best"] = "global"
    serves_newcomers: bool = True

    def __init__(self) -> None:
        super().__init__()
        self.penalty = Regularizer()

    def create(self, network: Network, loss: Loss) -> None:
        """Create the personalization's own parameters; called once, before ``setup``.

        Args:
            network: the layers that clients train.
            loss: the loss of local training.
        """

    def shared(self, name: str) -> bool:
        """Whether the weight with this name is shared; otherwise it is private to each client."""
        return not name.startswith(tuple(self.private_names))

    def choose(self, client: Client, message: PartMessage) -> Tensors:
        """Client: weights to use in this turn in place of the message's weights; by default none.

        The chosen weights replace weights of the message before the turn begins: in local training,
        in tuning, and when a sampler asks the client. So all parts see the chosen weights. During
        this call ``client`` has the message's weights, and no ``begin`` was called yet. A
        compressed update is the difference between trained and chosen weights, so the report must
        tell the server which weights were chosen. This is a hook, because ``begin`` is too late:
        other parts have begun with the message's weights.
        """
        return {}

    def phases(self, epochs: float) -> Sequence[Phase]:
        """The phases of one round's local training.

        ``epochs`` is the client's number of epochs in this round: ``local.epochs``, or a draw from
        it if it is a range. With ``local.steps`` it is this number of steps divided by the client's
        steps in one epoch, so it may be a fraction. Only ``Phase.epochs`` may depend on ``epochs``,
        because clients with different numbers of epochs may train together.
        """
        return (Phase(epochs),)

    def personal_phases(self, epochs: float) -> Sequence[Phase]:
        """The phases of a separate personal model, trained after the shared one; none by default.

        The personal model starts from the initial weights, and in later rounds from its own
        weights. It trains on the batches of the shared model, with ``penalty`` in place of the
        regularizer, and is never sent. This is a hook, because only the engine can train.
        """
        return ()

    def tuning(self) -> Sequence[Phase]:
        """The phases that tune a model on the client's data before a personal evaluation.

        By default there are none. Otherwise the personal model is a tuned copy of the model that
        ``tunes`` names, and the copy is dropped after the evaluation. A model of round t is tuned
        with the learning rate and the batches of round t + 1. ``(Phase(0),)`` scores the model
        without training, after the parts' ``begin``.
        """
        return ()

    def personal_weights(self, local: Tensors) -> Tensors:
        """The weights in which the personal model differs from the local model: name -> weight.

        Called after ``report``. The client's own weights do not change. If a separate personal
        model is trained, it replaces the result.

        Args:
            local: every weight after local training, private ones included.
        """
        return {}

    def own_parameters(self) -> Tensors:
        """The parameters of the client's own model, a second model that local steps train.

        They have the names of the shared model's parameters; by default there are none. This is a
        hook for losses that compare the two models (``Loss.takes_own_model``), because only the
        client can compute the own model's outputs.
        """
        return {}

    def class_vectors(self) -> Tensor | None:
        """The class vectors [C, d] that predict in place of the head; None if the head predicts.

        The heatmap shows them. The row of a class without a vector is zero. This method is called
        after ``receive``. With class vectors, the head of a personal model is scored too, as
        ``personal/accuracy_head_*``. This is a hook, because measures cannot see in
        ``personalize`` which vectors predict.
        """
        return None

    # Pure functions of parameters, buffers and the arguments.

    def term(self, batch: Forward) -> Tensor | float:
        """A scalar to add to the loss of a training step; by default 0.

        This is a hook, because ``Loss`` does not have the personalization's own parameters.
        """
        return 0.0

    def apply_head(self, head: nn.Module, z: Tensor) -> Tensor:
        """The logits [B, C] of the client's model for the backbone's features ``z`` [B, d].

        By default they are ``head(z)``. A part may give the head other features, or add the logits
        of a further head. In the global model the personalization's private parameters have their
        initial values. There the result must be ``head(z)``, as in an exported global model; a part
        without a global model is free. The features that losses and measures see are ``z``. The
        frozen models of a loss (``Loss.reference_models``) compute ``head(z)``, too; a part that
        overrides this method has the trait ``CHANGES_HEAD_INPUT``. This is a hook, because ``term``
        can only add to the loss, and ``personalize`` acts on personal models alone.
        """
        logits: Tensor = head(z)
        return logits

    def personalize(self, z: Tensor, logits: Tensor) -> Tensor:
        """Return the logits [B, C] of a personal model; by default those of its head.

        Args:
            z: the model's features [B, d].
            logits: the logits of the model's head [B, C].
        """
        return logits


class Aggregator(Part):
    """Turns a cohort's weights into the next global weights.

    ``add`` gets each update when it arrives. An average keeps a running sum: its memory does not
    grow with the cohort. A rule that compares updates keeps all of them until ``merge``.
    """

    takes_tokens = True

    @abstractmethod
    def add(self, update: Update, current: Tensors) -> None:
        """Add one client's update; ``current`` holds the global weights before the server step."""
        raise NotImplementedError

    def contribution(self) -> Contribution:
        """The updates of this rank so far, in a run of several ranks; see ``Reducible``."""
        raise NotImplementedError

    def set_reduced(self, sums: Tensors, items: Sequence[Any]) -> None:
        """Replace this rank's updates by the updates of all ranks; see ``Reducible``."""
        raise NotImplementedError

    @abstractmethod
    def merge(self, current: Tensors) -> Tensors:
        """Return the next global weights and forget the updates.

        If there is no update, or if the rule refuses to merge the updates, return ``current``
        itself, the current global weights. The server then skips the step. The server may also
        refuse the result, and such a round does not count. So ``server_state`` does not change here
        but in ``commit``.
        """
        raise NotImplementedError

    def commit(self) -> None:
        """Keep the state of the last ``merge``, whose result became the global weights.

        Called at the end of the server step, but not if the weights were refused.
        """


AnySampler = TypeVar("AnySampler", bound=Part)
"""The type of the sampler: ``fedexp.samplers.base.Sampler``, which this room does not know."""


@dataclass(frozen=True)
class Sockets(Generic[AnySampler]):
    """The method: one part in each socket.

    The parts' hooks are called in the order of the fields. The regularizer follows the
    personalization, because the regularizer's ``begin`` may compute gradients. Before that, the
    personalization must have set the whole model to the client's weights.
    """

    head: Head
    loss: Loss
    personalization: Personalization
    regularizer: Regularizer
    gradient: LocalGradient
    sampler: AnySampler
    aggregator: Aggregator

    def by_name(self) -> dict[str, Part]:
        """Socket -> part."""
        return dict(vars(self))
