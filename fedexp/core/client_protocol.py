"""Protocols of the client and its data, as the hooks of a part may use them.

Hooks get a ``ClientModule``. These protocols list what of it they may rely on, so that the contract
of a part does not import the client, which is built from parts.
"""

from collections.abc import Iterable, Iterator
from typing import Protocol

import torch
from torch import Generator, Tensor, nn

from fedexp.core.frozen_copies import FrozenCopies
from fedexp.core.messages import Tensors

Batch = tuple[Tensor, Tensor]
"""Inputs [B, *input_shape] ready for the model, float32 or token ids int64, and targets int64.

The targets are labels [B], or [B, L] where each token of a sequence has one (``core.token_rows``).
"""


class LocalData(Protocol):
    """One client's training data.

    Attributes:
        client: the client's number, 0 to N-1.
        num_samples: n_k.
        class_counts: [C] training samples of each class.
        labels: [n_k] int64 the class of each training sample; where each token has a target, that
            of the last token that is not ignored.
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
        """The inputs [B, *input_shape] at ``positions`` [B] among its samples.

        With a generator they are augmented as in local training, with draws of it.
        """

    def local_batches(self, round: int, batch_size: int) -> Iterable[Batch]:
        """Shuffled and augmented batches; each iteration over them is the next epoch."""

    def batches(self, batch_size: int, augment: Generator | None = None) -> Iterator[Batch]:
        """The training samples once, in order; with a generator augmented, as ``inputs``."""


class Client(Protocol):
    """A client in local training: its model, its data, and what training has recorded.

    Attributes:
        data: the client's training data.
        round: the round, from 1.
        device: where the model and the data are.
        head: the classifier, features [B, d] to logits [B, C].
        is_personal: whether a personal model is trained, not the shared one.
        learning_rate: of this round's local optimizer.
        steps: gradient steps taken in this round.
        cross_entropy: mean over the steps of the last local epoch, a scalar on the device; known
            when parts report.
        measured: socket -> what its part measured, summed over the steps.
        logged: name -> value; parts set it, and its mean over clients is logged.
        directions: name -> a step in parameter space, for comparison with the global step.
        frozen_copies: the other models that the loss compares with, by name.
    """

    data: LocalData
    round: int
    is_personal: bool
    learning_rate: float
    steps: int
    cross_entropy: Tensor
    measured: dict[str, Tensors]
    logged: dict[str, float]
    directions: dict[str, Tensors]

    @property
    def device(self) -> torch.device: ...  # noqa: D102

    @property
    def head(self) -> nn.Module: ...  # noqa: D102

    @property
    def frozen_copies(self) -> FrozenCopies: ...  # noqa: D102

    @property
    def weights(self) -> Tensors:
        """Every parameter and persistent buffer by name, sharing memory with the module.

        Without those that no client changes, see ``core.fixed_weights``.
        """

    def features(
        self, batch_size: int = 1000, augment: Generator | None = None
    ) -> tuple[Tensor, Tensor]:
        """Features z [n_k, d] and labels [n_k] of the training data, in eval mode.

        With a generator the inputs are augmented as in local training, if it augments any.
        """

    def loss_gradient(self, batch_size: int = 1000) -> Tensors:
        """Name -> gradient of the mean loss over the training data, every trained parameter.

        Of the objective without the regularizer, in train mode, without augmentation.
        """

    def logits_with(self, weights: Tensors, inputs: Tensor) -> Tensor:
        """Logits [B, C] in eval mode with ``weights`` in place of the model's own."""

    def optimizer_for(self, parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        """A fresh local optimizer of this round over ``parameters``."""
