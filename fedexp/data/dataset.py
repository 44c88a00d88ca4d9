"""Datasets as tensors, and the base class of the readers that load them."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from fedexp.config.compatibility.traits import Need
from fedexp.core.description import Description
from fedexp.core.token_rows import IGNORED
from fedexp.data.image_decoding import SAME_SIZE, Fit
from fedexp.data.preparations.images import Images
from fedexp.data.preparations.numbers import Numbers
from fedexp.data.preparations.preparation import Preparation
from fedexp.data.preparations.tokens import Tokens
from fedexp.errors import InputError


@dataclass(frozen=True)
class Origin:
    """The file or folder of a split, and the row or the file of each sample in it.

    Two splits that were drawn from one place have origins with the same ``place``.

    Attributes:
        place: words that name the config key and the file, and for a table the column, such as
            "data.target=species: test.csv".
        rows: [n] the row of each sample, counted from 0, or the path of its file.
    """

    place: str
    rows: np.ndarray

    def take(self, index: np.ndarray | slice) -> "Origin":
        """The origin of the samples at ``index``."""
        return Origin(self.place, self.rows[index])

    def of(self, position: int) -> str:
        """Words for the sample at this position."""
        row = self.rows[position]
        is_number = isinstance(row, int | np.integer)
        return f"{self.place}, row {row} (counted from 0)" if is_number else f"{self.place}/{row}"


TOKEN_TYPES = (torch.int16, torch.int32, torch.int64)
"""Types of token ids; uint8 always means images."""


Means = tuple[Annotated[float, Field(ge=0, le=1)], ...]
"""Mean of each image channel, for pixels in [0, 1]."""

Deviations = tuple[Annotated[float, Field(ge=1e-6, le=1)], ...]
"""Standard deviation of each image channel, for pixels in [0, 1]."""


@dataclass(frozen=True)
class Split:
    """One split of a dataset.

    Attributes:
        inputs: [n, *input_shape]: uint8 images, normalised floats, or token ids as int16, int32 or
            int64.
        labels: [n] int64 class of each sample. If there are ``targets``, a sample's label is the
            class of its last scored token.
        users: [n] user of each sample (for the natural partition), or None.
        overlap: a sample may share content with at most this many following samples of its user,
            because windows of text overlap; 0 if samples share nothing.
        targets: [n, L] int64 class of each token of a sequence, ``IGNORED`` for tokens that are not
            scored. None if each sample has only its label.
        origin: where the samples were read, for messages; None if the reader does not say.
    """

    inputs: Tensor
    labels: Tensor
    users: np.ndarray | None = None
    overlap: int = 0
    targets: Tensor | None = None
    origin: Origin | None = None

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def strata(self) -> np.ndarray:
        """The class of each sample, [n] int64, for draws of a share of each class.

        If there are ``targets``, samples have no class: all are of one class, 0.
        """
        labels: np.ndarray = self.labels.numpy()
        return labels if self.targets is None else np.zeros_like(labels)

    def take(self, index: np.ndarray | slice) -> "Split":
        """The samples at ``index``, in the order of ``index``; a slice copies nothing."""
        users = None if self.users is None else self.users[index]
        targets = None if self.targets is None else self.targets[index]
        origin = None if self.origin is None else self.origin.take(index)
        return Split(self.inputs[index], self.labels[index], users, self.overlap, targets, origin)

    def cut(self, position: int) -> "tuple[Split, Split]":
        """Divide the split in two at ``position``; nothing is copied."""
        return self.take(slice(position)), self.take(slice(position, None))


@dataclass(frozen=True)
class Dataset:
    """A training split and a test split.

    Attributes:
        description: shape of the inputs and names of the classes.
        train: the training split.
        test: the test split.
        mean: mean of each channel, to normalise uint8 images; empty for other inputs.
        std: standard deviation of each channel, to normalise uint8 images; empty for other inputs.
        fit: how image files were brought to one size.
        raw: the rule that turned raw inputs into the inputs of the splits. None if the splits have
            raw inputs: decoded images, or unchanged numbers or tokens.
        user_names: if the splits' ``users`` are numbers from 0, the name of each; empty if they are
            names.

    Raises:
        InputError: a split is empty or does not fit the description, or ``mean`` or ``std`` is set
            for tokens.
    """

    description: Description
    train: Split
    test: Split
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()
    fit: Fit = SAME_SIZE
    raw: Preparation | None = None
    user_names: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        about = self.description
        for name, split, labels in (
            ("training", self.train, range(about.num_classes)),
            ("test", self.test, about.test_labels),
        ):
            if problem := _misfit(split, about, labels):
                raise InputError(f"data: the {name} split of {about.name} {problem}")
        if about.vocabulary and (self.mean or self.std):
            raise InputError("data.mean and data.std: are for images; these inputs are tokens")

    @property
    def preparation(self) -> Preparation:
        """The rule that turns raw inputs into a model's inputs."""
        shape, vocabulary = self.description.input_shape, self.description.vocabulary
        if self.raw is not None:
            return self.raw
        if self.train.inputs.dtype == torch.uint8 and len(shape) == 3:
            fit = self.fit
            return Images(shape, self.mean, self.std, fit.kind, fit.short_side)
        return Tokens(shape[0], vocabulary) if vocabulary else Numbers(shape)


def check_constants(mean: Means | None, std: Deviations | None, channels: int) -> None:
    """Raise InputError if ``mean`` or ``std`` is set and does not have ``channels`` numbers."""
    for key, constants in (("mean", mean), ("std", std)):
        if constants is not None and len(constants) != channels:
            raise InputError(
                f"data.{key}={list(constants)}: must have {channels} numbers, one for each channel"
            )


def _misfit(split: Split, about: Description, allowed: range) -> str | None:
    """What is wrong with a split, whose labels must be in ``allowed``; None if nothing."""
    inputs, labels = split.inputs, split.labels
    if len(inputs) != len(labels):
        return f"has {len(inputs)} inputs and {len(labels)} labels"
    if not len(labels):
        return "is empty"
    if labels.dim() != 1 or labels.dtype != torch.int64:
        return (
            f"has labels of {tuple(labels.shape[1:])} {labels.dtype} instead of one int64 "
            "per sample; put the classes of tokens into Split.targets"
        )
    if inputs.shape[1:] != about.input_shape:
        return f"has inputs of {tuple(inputs.shape[1:])} instead of {about.input_shape}"
    for label in (int(labels.min()), int(labels.max())):
        if label not in allowed:
            return f"has the label {label}; labels are {allowed.start} to {allowed.stop - 1}"
    if split.overlap and split.users is None:
        return "has overlapping samples, but no users"
    return _misfit_of_type(inputs, about.vocabulary) or _misfit_of_targets(split, about)


def _misfit_of_targets(split: Split, about: Description) -> str | None:
    """What is wrong with the tokens' targets, in words; None if nothing."""
    targets = split.targets
    if (targets is not None) != about.per_token:
        return "has no targets of tokens" if about.per_token else "has targets of tokens"
    if targets is None:
        return None
    if targets.shape != split.inputs.shape[:2] or targets.dtype != torch.int64:
        return (
            f"has targets of {tuple(targets.shape)} {targets.dtype} instead of one int64 for each "
            f"token, {tuple(split.inputs.shape[:2])}"
        )
    is_scored = targets != IGNORED
    if not is_scored.any(dim=1).all():
        return "has sequences without a scored token"
    for target in (int(targets[is_scored].min()), int(targets.max())):
        if not 0 <= target < about.num_classes:
            return f"has the target {target}; targets are 0 to {about.num_classes - 1}"
    return None


def _misfit_of_type(inputs: Tensor, vocabulary: int) -> str | None:
    """What is wrong with the inputs' type or the token ids, in words; None if nothing."""
    if not vocabulary:
        allowed = inputs.dtype == torch.uint8 or inputs.is_floating_point()
        return None if allowed else f"has inputs of {inputs.dtype}, but no vocabulary of tokens"
    if inputs.dtype not in TOKEN_TYPES:
        return f"has inputs of {inputs.dtype} instead of token ids as int16, int32 or int64"
    for token in (int(inputs.min()), int(inputs.max())):
        if not 0 <= token < vocabulary:
            return f"has the token {token}; tokens are 0 to {vocabulary - 1}"
    return None


class Describer(ABC):
    """Describes a dataset without loading it. The YAML sets the constructor's arguments.

    Attributes:
        traits: properties of the data; see ``fedexp.config.compatibility``.
    """

    traits: frozenset[str] = frozenset({Need.ALL_CLIENTS})

    @abstractmethod
    def describe(self) -> Description:
        """Return the inputs' shape and the class names, without decoding samples.

        Raises InputError if a file is missing.
        """


class Source(Describer):
    """A reader: it describes a dataset, then loads it. Below ``root`` it writes only downloads."""

    @abstractmethod
    def load(self, cache: Path) -> Dataset:
        """Load the dataset; decoded tensors may be cached below ``cache``."""
