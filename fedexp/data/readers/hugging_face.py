"""Any dataset of Hugging Face's ``datasets`` library; the config names its columns."""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from fedexp.config.compatibility.unread import given
from fedexp.core.description import Description
from fedexp.data.cache import Images, cached_images, fingerprint
from fedexp.data.classes import Classes, check_column, encode_classes, encode_users
from fedexp.data.dataset import Dataset, Deviations, Means, Origin, Source, Split, check_constants
from fedexp.data.image_decoding import Fit, ImageSize
from fedexp.data.preparations.numbers import Numbers
from fedexp.data.preparations.preparation import Preparation
from fedexp.data.preparations.tokens import Tokens, padded
from fedexp.data.readers import hugging_face_columns as inputs
from fedexp.data.readers.characters import SequenceLength
from fedexp.data.readers.features import standardisation
from fedexp.data.readers.hugging_face_columns import column, last_scored, of_tokens, ragged
from fedexp.data.readers.hugging_face_files import open_splits, quiet
from fedexp.data.readers.image_statistics import Constants, normalisation
from fedexp.data.train_test import (
    SplitSeed,
    TestFraction,
    UserSplit,
    check_user_column,
    check_users,
    divide,
)
from fedexp.errors import InputError

LOGGER = logging.getLogger(__name__)

T = TypeVar("T")


@dataclass
class HuggingFace(Source):
    """A dataset of the Hugging Face hub, or local files that the library ``datasets`` reads.

    Images become uint8, lists of integers become token ids, numbers and lists of numbers become
    float32. Nested lists of one shape are arrays: uint8 arrays are images, other arrays become
    float32 without standardisation. The library has a separate cache and writes nothing into local
    folders.

    Args:
        name: a folder written by ``save_to_disk``, a folder or a file with CSV, JSON, Parquet or
            images, or a name on the hub, such as ``ylecun/mnist``; ``~`` is expanded.
        config: configuration of the dataset, if it has several.
        revision: commit, tag or branch on the hub; None for the newest.
        input: input column, or several columns of numbers.
        target: column of the class: class labels, text, whole numbers or booleans. With token
            inputs it may also hold lists with a class for each token; tokens with -100 are not
            scored.
        user: column of the user for the natural partition; None if there is none.
        train: name of the training split.
        test: name of the test split; None draws a share of ``train``.
        test_fraction: share for testing: of the samples, or with ``split=users`` of the users.
            Without users, the test samples are drawn from each class, or from all samples if each
            token has a class; with users, ``split`` names the rule.
        split: ``within`` draws test rows from the rows of each user. ``users`` draws whole users
            for testing; a given test split must then have other users than ``train``.
        split_seed: seed of the draw for testing; independent of the run's seed.
        standardize: replace numbers x by (x - mean) / std, with the training rows' mean and std.
        sequence_length: number of tokens in each sequence. Longer sequences are cut; shorter
            sequences are padded in front with an extra token. None if all have the same length.
        image_size: resize images to this height and width; None if all have the same size. It must
            be None for arrays, tokens and numbers.
        mean: mean of each image channel, for inputs in [0, 1]; None measures it on the training
            images.
        std: standard deviation of each image channel, for inputs in [0, 1]; None measures it on the
            training images.

    Raises:
        InputError: the constructor raises it if an argument is invalid, ``describe`` if the
            library, the dataset, a split or a column is missing or unusable, ``load`` if an image
            is damaged or has another size.
    """

    unread_if = MappingProxyType({"test_fraction": {"test": given}, "split_seed": {"test": given}})

    name: str
    config: str | None
    revision: str | None
    input: str | list[str]
    target: str
    user: str | None
    train: str
    test: str | None
    test_fraction: TestFraction
    split: UserSplit
    split_seed: SplitSeed
    standardize: bool
    sequence_length: SequenceLength | None
    image_size: ImageSize | None
    mean: Means | None
    std: Deviations | None

    def __post_init__(self) -> None:
        check_user_column(self.split, self.user)
        if self.test == self.train:
            raise InputError(
                f"data.test={self.test}: is the training split; use null to draw a share of it"
            )
        self._columns = [self.input] if isinstance(self.input, str) else self.input

    def describe(self) -> Description:
        """Shape and classes; downloads the dataset, if it is on the hub, and reads its columns."""
        shape = self._image_shape if self._kind == "image" else self._arrays[0].shape[1:]
        title = Path(self.name).name
        names, per_token = self._classes[0], self._token_targets is not None
        return Description(
            title, tuple(shape), names, vocabulary=self._vocabulary, per_token=per_token
        )

    def load(self, cache: Path) -> Dataset:
        """Load the dataset; decoded images are cached in ``cache``/images."""
        if self.sequence_length is not None and self._kind != "tokens":
            LOGGER.warning("data.sequence_length: has no effect, as data.input holds no tokens")
        about = self.describe()
        train, test = self._parts(self._decoded(cache) if self._kind == "image" else self._arrays)
        values = train.inputs.numpy()
        mean, std = self._constants(values)
        raw = self._preparation(values)
        train, test = (
            replace(part, inputs=self._prepared(part.inputs.numpy(), raw)) for part in (train, test)
        )
        return Dataset(about, train, test, mean, std, self._fit, raw)

    def _parts(self, arrays: Sequence[np.ndarray]) -> Sequence[Split]:
        """The training and the test samples; ``arrays`` has the inputs of each used split."""
        users, targets = self._users, self._token_targets
        place = f"data.target={self.target}: {self.name}, split"
        wholes = [
            Split(
                torch.from_numpy(values),
                torch.from_numpy(self._classes[1][number]),
                None if users is None else users[number],
                targets=None if targets is None else torch.from_numpy(targets[number]),
                origin=Origin(f"{place} {name}", np.arange(len(values))),
            )
            for number, (name, values) in enumerate(zip(self._used_splits, arrays, strict=True))
        ]
        if self.test is not None:
            check_users(self.split, wholes[0].users, wholes[1].users, self.name)
            return wholes
        whole = wholes[0]
        rows = divide(whole.strata, whole.users, self.split, self.test_fraction, self.split_seed)
        return [whole.take(each) for each in rows]

    def _preparation(self, train: np.ndarray) -> Preparation | None:
        """The rule for tokens or standardised numbers; None for images, arrays, other numbers."""
        if self._kind == "tokens":
            padding = None if self.sequence_length is None else self._vocabulary - 1
            return Tokens(train.shape[1], self._vocabulary, padding)
        if self._kind != "numbers" or not self.standardize:
            return None
        key = f"data.input={self.input}"
        mean, std = standardisation(train, lambda place: f"{key}: number {place} of a row")
        return Numbers((train.shape[1],), tuple(mean.tolist()), tuple(std.tolist()), "float64")

    def _prepared(self, values: np.ndarray, raw: Preparation | None) -> Tensor:
        """The inputs of a split as a tensor.

        Numbers become float32; they are standardised unless ``raw`` is None.
        """
        if self._kind != "numbers":
            return torch.from_numpy(values)
        key = f"data.input={self.input}: standardised, it"
        if raw is None:
            return torch.from_numpy(inputs.as_float32(key, values))
        found = raw.prepare(torch.from_numpy(values))
        inputs.refuse_too_large(key, found.isinf().any(dim=1).numpy())
        return found

    @cached_property
    def _used_splits(self) -> dict[str, Any]:
        """The training split, then the test split if ``test`` names one, by their names."""
        splits = open_splits(self.name, self.config, self.revision)
        names = [self.train] if self.test is None else [self.train, self.test]
        for key, name in zip(("train", "test"), names, strict=False):
            if name not in splits:
                advice = ", or null to draw a share of data.train" if key == "test" else ""
                raise InputError(
                    f"data.{key}={name}: {self.name} has no such split; use {', '.join(splits)}"
                    f"{advice}"
                )
        self._check_columns(splits, names)
        return {name: splits[name] for name in names}

    def _of_each(self, key: str, read: Callable[[str, Any], T]) -> list[T]:
        """Call ``read(place, split)`` for each used split; ``place`` names ``key`` and split."""
        return [read(f"{key}: the split {name}", part) for name, part in self._used_splits.items()]

    def _check_columns(self, splits: Mapping[str, Any], names: Sequence[str]) -> None:
        """Raise InputError if a split is empty or a column is missing.

        There must be an input column, and the target must be neither an input nor the user.
        """
        wanted = [("input", each) for each in self._columns] + [("target", self.target)]
        wanted += [("user", self.user)] if self.user is not None else []
        for name in names:
            if not len(splits[name]):
                raise InputError(f"data.name={self.name}: the split {name} has no rows")
            for key, each in wanted:
                where = f"the split {name} of {self.name}"
                check_column(f"data.{key}", each, splits[name].column_names, where)
        if not self._columns or self.target in self._columns:
            raise InputError(f"data.input={self._columns}: must be columns other than the target")
        if self.user == self.target:
            raise InputError(f"data.user={self.user}: must be another column than the target")

    @cached_property
    def _kind(self) -> inputs.Kind:
        """Kind of the inputs. Several input columns must all hold numbers."""
        kinds = {
            inputs.kind_of(f"data.input={name}", part.features[name])
            for part in self._used_splits.values()
            for name in self._columns
        }
        if len(self._columns) > 1 and kinds != {"numbers"}:
            raise InputError(f"data.input={self._columns}: several columns must all hold numbers")
        if len(kinds) > 1:
            raise InputError(
                f"data.input={self.input}: holds {' and '.join(sorted(kinds))} in the splits "
                f"{self.train} and {self.test}; both should hold one kind"
            )
        return kinds.pop()

    @cached_property
    def _classes(self) -> Classes:
        """The class names, and the labels of each split."""
        key = f"data.target={self.target}"
        if self._token_targets is not None:
            return self._token_names, [last_scored(each) for each in self._token_targets]
        columns = self._of_each(key, lambda _, part: column(part, self.target))
        features = [part.features[self.target] for part in self._used_splits.values()]
        if any(type(feature).__name__ not in ("ClassLabel", "Value") for feature in features):
            raise InputError(f"{key}: holds lists or images; should hold one class per sample")
        places = self._of_each(key, lambda place, _: place)
        if not hasattr(features[0], "names"):
            return encode_classes(places, columns)
        self._check_names(features)
        labels = [np.array(column.fillna(-1), dtype=np.int64) for column in columns]
        for place, each in zip(places, labels, strict=True):
            if (each < 0).any():
                raise InputError(
                    f"{place} has no class in {(each < 0).sum()} rows, first in row "
                    f"{(each < 0).argmax()}; use another split"
                )
        return tuple(features[0].names), labels

    def _check_names(self, features: Sequence[Any]) -> None:
        """Raise InputError if the training split's classes have other names in the test split."""
        names = getattr(features[0], "names", None)
        if names and any(getattr(each, "names", None) != names for each in features):
            raise InputError(
                f"data.target={self.target}: has other classes in the split {self.test} than in "
                f"{self.train}"
            )

    @cached_property
    def _token_targets(self) -> list[np.ndarray] | None:
        """The int64 targets [n, L] of each split's tokens; None if each row has one class."""
        features = [part.features[self.target] for part in self._used_splits.values()]
        if self._kind != "tokens" or not inputs.is_list(features[0]):
            return None
        key, length = f"data.target={self.target}", self.sequence_length
        if any(inputs.kind_of(key, each) != "tokens" for each in features):
            raise InputError(f"{key}: should hold lists of whole numbers, a class for each token")
        self._check_names([each.feature for each in features])
        lists = self._of_each(key, lambda place, part: (place, ragged(place, part, self.target)))
        return [
            of_tokens(place, classes, ids, length)
            for (place, classes), ids in zip(lists, self._sequences, strict=True)
        ]

    @property
    def _token_names(self) -> tuple[str, ...]:
        """The class names for a target column with a class for each token."""
        inner = self._used_splits[self.train].features[self.target].feature
        highest = max(int(targets.max()) for targets in self._token_targets or ())
        return tuple(getattr(inner, "names", map(str, range(highest + 1))))

    @cached_property
    def _users(self) -> list[np.ndarray] | None:
        """For each split, the user of each row; None if ``user`` names no column."""
        user = self.user
        if user is None:
            return None
        return self._of_each(
            f"data.user={user}", lambda place, part: encode_users(place, column(part, user))
        )

    @cached_property
    def _sequences(self) -> list[list[np.ndarray]]:
        """The token ids of each split."""
        name, length = self._columns[0], self.sequence_length
        return self._of_each(
            f"data.input={name}", lambda place, part: inputs.tokens(place, part, name, length)
        )

    @cached_property
    def _vocabulary(self) -> int:
        """Number of token ids; 0 if the inputs are not tokens.

        With ``sequence_length``, the last id is the padding.
        """
        if self._kind != "tokens":
            return 0
        highest = max(int(ids.max()) for part in self._sequences for ids in part)
        return highest + 1 + (self.sequence_length is not None)

    @cached_property
    def _arrays(self) -> list[np.ndarray]:
        """The inputs of each split, except images."""
        name = self._columns[0]
        if self.image_size is not None:
            raise InputError(
                f"data.image_size={self.image_size}: the column {name} holds no encoded "
                "images, and only these are resized; should be null"
            )
        if self._kind == "tokens":
            length, padding = self.sequence_length, self._vocabulary - 1
            found = [padded(ids, length or len(ids[0]), padding) for ids in self._sequences]
        elif self._kind == "array":
            found = self._of_each(
                f"data.input={name}", lambda place, part: inputs.array(place, part, name)
            )
        else:
            found = [
                inputs.numbers(split, part, self._columns)
                for split, part in self._used_splits.items()
            ]
        forms = [f"{array.shape[1:]} {array.dtype}" for array in found]
        if forms[-1] != forms[0]:
            raise InputError(
                f"data.input={self.input}: {forms[0]} in the split {self.train}, but {forms[-1]} "
                f"in {self.test}; all inputs should have one shape and type"
            )
        return found

    @cached_property
    def _image_shape(self) -> tuple[int, ...]:
        key, first = f"data.input={self._columns[0]}", self._used_splits[self.train]
        return inputs.image_shape(key, first, self._columns[0], self.image_size)

    @property
    def _fit(self) -> Fit:
        return Fit("same" if self.image_size is None else "stretch")

    def _decoded(self, cache: Path) -> list[np.ndarray]:
        """The images of each split."""
        fit, name = self._fit, self._columns[0]
        found = []
        for split, part in self._used_splits.items():
            shape = (len(part), *self._image_shape)
            state = fingerprint("hf, one mode", part._fingerprint, name, shape, fit)

            def fill(images: Images, split: Any = split, part: Any = part) -> None:
                with quiet():
                    inputs.decode(f"data.name={self.name}: {split}", part, name, fit, images)

            found.append(cached_images(cache / "images" / f"{state}.npy", shape, fill))
        return found

    def _constants(self, train: np.ndarray) -> Constants:
        """Mean and std of each image channel, configured or measured; empty for other inputs."""
        if train.dtype != np.uint8:
            if self.mean is not None or self.std is not None:
                raise InputError(
                    "data.mean and data.std: are for images; these inputs are not images"
                )
            return (), ()
        check_constants(self.mean, self.std, train.shape[1])
        return normalisation(train, self.mean, self.std)
