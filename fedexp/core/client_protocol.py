"""Protocols: the members of a client and of its data that the hooks of a part may use.

Hooks get a ``ClientModule``, but their annotations name these protocols instead, for two reasons.
``core.client`` imports ``core.part``, so ``core.part`` cannot import ``core.client``. And a module
with parts must not import Lightning, so that a mistake in a config shows quickly.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Protocol

import torch
from torch import Generator, Tensor, nn

from fedexp.core.frozen_copies import FrozenCopies
from fedexp.core.last_batch import KEEP, LastBatch
from fedexp.core.messages import Tensors

Batch = tuple[Tensor, Tensor]
"""Inputs [B, *input_shape] ready for the model, float32 or token ids int64, and targets int64.

The targets are labels [B]. If each token of a sequence has a target, they are [B, L], where L is
the length of the sequences (``core.token_rows``).
"""

Functional = Callable[[Tensors, Tensor], Tensor]
"""A model as a pure function: (weights, inputs [B, ...]) -> logits [B, C]."""


class GradientAt(Protocol):
    """The gradient of a client's objective on the batch of the current step."""

    def __call__(self, parameters: Tensors, part: int = 0, parts: int = 1) -> Tensors:
        """Name -> gradient, for every trained parameter.

        Args:
            parameters: name -> value of every trained parameter.
            part: which part of the batch to use, from 0.
            parts: number of parts of nearly equal size that the batch is divided into. A part that
                would be empty has the batch's first sample.

        Running statistics do not change.
        """


class LocalData(Protocol):
    """One client's training data.

    Attributes:
        client: the client's number, 0 to N-1.
        num_samples: n_k, the number of training samples.
        class_counts: [C] training samples of each class.
        labels: [n_k] int64 class of each training sample. If each token has a target, the class of
            a sequence is the target of its last token that is not ignored.
        is_augmented: whether local training augments its inputs.
    """

    @property
    def client(self) -> int: ...  # noqa: D102

    @property
    def num_samples(self) -> int: ...  # noqa: D102

    @property
    def class_counts(self) -> Tensor: ...  # noqa: D102

    @property
    def labels(self) -> Tensor: ...  # noqa: D102

    @property
    def is_augmented(self) -> bool: ...  # noqa: D102

    def inputs(self, positions: Tensor, augment: Generator | None = None) -> Tensor:
        """The inputs [B, *input_shape] at ``positions`` [B] among the client's training samples.

        If ``augment`` is a generator, the inputs are augmented as in local training, with random
        draws from the generator.
        """

    def subset(self, positions: Tensor) -> "LocalData":
        """The data with only the training samples at ``positions`` [m]; m must be at least 1."""

    def local_batches(self, round: int, batch_size: int, last: LastBatch = KEEP) -> Iterable[Batch]:
        """Shuffled and augmented batches; each loop over them yields the next epoch."""

    def batches(
        self, batch_size: int, augment: Generator | None = None, last: LastBatch = KEEP
    ) -> Iterator[Batch]:
        """Batches of all training samples, not shuffled; ``augment`` works as in ``inputs``."""


class Client(Protocol):
    """A client in its turn: its model, its data, and the record of its local training.

    Attributes:
        data: the client's training data.
        num_samples: n_k, the number of the client's own training samples, also if it trains on
            other data (``train_on``).
        round: the round, from 1.
        device: where the model and the data are.
        backbone: turns inputs into features z [B, d].
        head: the classifier; turns features [B, d] into logits [B, C].
        is_personal: whether a personal model is trained, not the shared model.
        learning_rate: learning rate of this round's local optimizer; NaN before training begins.
        steps: gradient steps taken in this round.
        cross_entropy: mean cross-entropy over the steps of the last local epoch, a scalar on the
            device; NaN before the parts' ``report``.
        frozen_copies: name -> a frozen model that the loss compares the trained model with.
    """

    @property
    def data(self) -> LocalData: ...  # noqa: D102

    @property
    def num_samples(self) -> int: ...  # noqa: D102

    @property
    def round(self) -> int: ...  # noqa: D102

    @property
    def device(self) -> torch.device: ...  # noqa: D102

    @property
    def backbone(self) -> nn.Module: ...  # noqa: D102

    @property
    def head(self) -> nn.Module: ...  # noqa: D102

    @property
    def is_personal(self) -> bool: ...  # noqa: D102

    @property
    def learning_rate(self) -> float: ...  # noqa: D102

    @property
    def steps(self) -> int: ...  # noqa: D102

    @property
    def cross_entropy(self) -> Tensor: ...  # noqa: D102

    @property
    def frozen_copies(self) -> FrozenCopies: ...  # noqa: D102

    def measured(self, part: object) -> Tensors:
        """The results of ``part.measure``, summed over the steps of local training."""

    def record(self, values: Mapping[str, float]) -> None:
        """Log these named values; the log shows their means over the clients."""

    def compare(self, name: str, step: Tensors) -> None:
        """Keep ``step`` for the measure ``StepCosine``, which uses it at the end of the round.

        The measure logs ``geometry/<name>_step_cosine``: the cosine between ``step`` and the
        round's change of the global weights, averaged over the clients. ``step`` is a change of the
        parameters: parameter name -> tensor.
        """

    def train_on(self, data: LocalData) -> None:
        """Use ``data`` as the training data in this round.

        The update still has the number of the client's own training samples. A part that leaves
        samples out also overrides ``Part.trained_samples``.
        """

    def global_model(self) -> Functional:
        """The received global model as a function; a call does not change the client.

        The model is in eval mode, and its head is not adapted to the client.
        """

    @property
    def weights(self) -> Tensors:
        """Name -> parameter or persistent buffer, sharing the module's memory.

        Fixed weights are left out, see ``core.fixed_weights``. A tensor with several names (tied
        weights) has its first name.
        """

    def features(
        self, batch_size: int = 1000, augment: Generator | None = None
    ) -> tuple[Tensor, Tensor]:
        """Features z [n, d] and labels [n] of the training data under the current model.

        If each token has a target, n counts tokens. The model is in eval mode. If ``augment`` is a
        generator and local training augments the inputs, they are augmented here, too, with the
        generator's random numbers. Otherwise the result is stored until the weights change, so
        that several parts can use it.
        """

    def loss_gradient(self, batch_size: int = 1000) -> Tensors:
        """Parameter name -> gradient of the mean loss over the training data.

        The loss does not include the regularizer, and the data are not augmented. The model is in
        train mode, as in local training: BatchNorm normalises with the statistics of each batch and
        dropout is active. Weights and running statistics do not change.
        """

    def batch_gradient(
        self, batch: Batch, at: Mapping[str, Tensor], scale: float = 1.0
    ) -> tuple[Tensor, Tensors]:
        """The loss on one batch times ``scale``, a scalar, and its gradient (name -> tensor).

        ``at`` is parameter name -> value. The gradient is taken with respect to these parameters,
        at these values; all other parameters keep the client's values. Loss and train mode are as
        in ``loss_gradient``. The model does not change.
        """

    def load(self, weights: Mapping[str, Tensor]) -> None:
        """Copy ``weights`` into the model; weights of other names do not change.

        A call in ``begin`` sets the weights that training starts from. The frozen copies do not
        change.
        """

    def classify(self, z: Tensor) -> Tensor:
        """Logits [B, C] of features ``z`` [B, d], as the client's model computes them."""

    def logits_with(self, weights: Tensors, inputs: Tensor) -> Tensor:
        """Logits [B, C] in eval mode, with ``weights`` in place of the client's weights."""

    def optimizer_for(self, parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        """A fresh local optimizer of this round over ``parameters``."""
