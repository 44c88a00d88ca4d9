"""Facts by which data contradict themselves: one rule for all readers.

Refused, with the place of the first sample of each:

* two class names that differ only in spacing, or in how a number is written (" yes" and "yes ", "1"
  and "1.0"): they are one class, typed in two ways;
* a class that only the test split has, if the splits were read from two places: nobody can learn
  it, and mostly it is a typing error in one of the files.

Warned of, because it may be right:

* a class that only the test split has, if both splits were drawn from one place, as the draw may
  have done it, or if the reader does not say where they are from;
* class names that differ only in upper and lower case;
* classes without any training sample;
* test samples with the same inputs as a training sample.

A reader says where its samples are from with ``Split.origin``.
"""

import logging
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from decimal import Decimal, InvalidOperation

import numpy as np
from torch import Tensor

from fedexp.core.description import SPOKEN
from fedexp.data.dataset import Dataset, Split
from fedexp.errors import InputError

LOGGER = logging.getLogger(__name__)

_MOST_BYTES = 2**30
"""So many bytes of each split are searched for equal samples; CIFAR-10 has 176 MiB."""

_ALPHABET = 10
"""More classes than this are an alphabet if each is a character, or the name of an invisible one.

In an alphabet "a" and "A" differ."""

_SHOWN = 5


def check(dataset: Dataset) -> None:
    """Raise InputError if the data contradict themselves; warn of facts that may be a mistake."""
    about, train, test = dataset.description, dataset.train, dataset.test
    refuse(about.classes, train, test)
    _warn_of_case(about.classes, train, test)
    if not about.unseen_classes and not about.per_token:
        _warn_of_absent(about.classes, train, test)
    _warn_of_copies(train, test)


def refuse(classes: Sequence[str], train: Split, test: Split) -> None:
    """Raise InputError for class names that are the same, and for classes of the test split alone.

    Test labels of C or more are those of unseen classes, which have other names. The splits' inputs
    are not used.
    """
    for first, second in _twins(classes, _as_typed):
        raise InputError(
            f"{_place(train, test)}the classes {classes[first]!r} and {classes[second]!r} differ "
            f"only in how they are written ({_first(first, train, test)}; "
            f"{_first(second, train, test)}); write them alike"
        )
    if _drawn_from_one(train, test):
        return
    for number in _only_tested(train, test, len(classes)):
        trained = train.origin and train.origin.place
        raise InputError(
            f"{_first(number, train, test)}: the class {classes[number]!r} is not in the training "
            f"split ({trained}); correct it, or add samples of it to the training split"
        )


def _drawn_from_one(train: Split, test: Split) -> bool:
    """Whether the splits are from one place, or a reader does not say."""
    if train.origin is None or test.origin is None:
        return True
    return train.origin.place == test.origin.place


def _warn_of_case(classes: Sequence[str], train: Split, test: Split) -> None:
    for first, second in _twins(classes, str.casefold):
        LOGGER.warning(
            "the classes %r and %r differ only in upper and lower case (%s; %s)",
            classes[first],
            classes[second],
            _first(first, train, test),
            _first(second, train, test),
        )


def _warn_of_absent(classes: Sequence[str], train: Split, test: Split) -> None:
    """Warn of classes without training samples, in one line; say which ones have test samples."""
    absent = np.setdiff1d(np.arange(len(classes)), train.labels)
    if not len(absent):
        return
    tested = _only_tested(train, test, len(classes))
    names = ", ".join(repr(classes[number]) for number in absent[:_SHOWN])
    more = ", ..." if len(absent) > _SHOWN else ""
    line = f"{len(absent)} of {len(classes)} classes have no training sample: {names}{more}"
    if len(tested):
        number = int(tested[0])
        count, place = np.isin(test.labels, tested).sum(), _first(number, train, test)
        line += f"; {count} test samples are of such classes, the first is {place}"
    LOGGER.warning("%s", line)


def _warn_of_copies(train: Split, test: Split) -> None:
    """Warn of test samples whose inputs are those of a training sample."""
    found = copies(train.inputs, test.inputs)
    if not found:
        return
    trained, tested = found[0]
    other = sum(bool(train.labels[a] != test.labels[b]) for a, b in found)
    of_other = f" ({other} of them have another class)" if other else ""
    LOGGER.warning(
        "%d of %d test samples have the same inputs as a training sample%s; the first are %s and "
        "%s; a model may know them by heart",
        len(found),
        len(test.labels),
        of_other,
        _where("test", test, tested),
        _where("training", train, trained),
    )


def copies(train: Tensor, test: Tensor) -> list[tuple[int, int]]:
    """Pairs of a training and a test position [n, ...] with equal inputs, one for a test sample."""
    tested: dict[int, list[int]] = {}
    for position, sample in enumerate(_hashes(test)):
        tested.setdefault(sample, []).append(position)
    found: dict[int, int] = {}
    for position, sample in enumerate(_hashes(train)):
        for other in tested.get(sample, ()):
            if other not in found and bool((train[position] == test[other]).all()):
                found[other] = position
    return [(found[other], other) for other in sorted(found)]


def _hashes(inputs: Tensor) -> Iterator[int]:
    rows = inputs.reshape(len(inputs), -1).numpy()
    for row in rows[: max(1, _MOST_BYTES // max(1, rows[0].nbytes))]:
        yield hash(row.tobytes())


def _only_tested(train: Split, test: Split, classes: int) -> np.ndarray:
    """The labels below ``classes`` that the test split has and the training split lacks."""
    only: np.ndarray = np.setdiff1d(_targets(test), _targets(train))
    return only[(only >= 0) & (only < classes)]  # IGNORED is negative


def _targets(split: Split) -> Tensor:
    """The class of each sample [n], or of each token [n, L] with ``IGNORED``."""
    return split.labels if split.targets is None else split.targets


def _twins(classes: Sequence[str], form: Callable[[str], str]) -> Iterator[tuple[int, int]]:
    """Pairs of different names with the same ``form``."""
    spoken = SPOKEN.values()
    if len(classes) > _ALPHABET and all(len(name) == 1 or name in spoken for name in classes):
        return
    known: dict[str, int] = {}
    for number, name in enumerate(classes):
        first = known.setdefault(form(name), number)
        if first != number:
            yield first, number


def _as_typed(name: str) -> str:
    """A name without surplus spaces; a number in one form, so that "1.0" and "01" become "1"."""
    words = " ".join(unicodedata.normalize("NFC", name).split())
    if "_" in words:  # Decimal would read 1_2 as 12
        return words
    try:
        number = Decimal(words)
    except InvalidOperation:
        return words
    return (
        f"{number.normalize():f}" if number.is_finite() and abs(number.adjusted()) < 20 else words
    )


def _first(number: int, train: Split, test: Split) -> str:
    """The place of the first sample of a class."""
    for name, split in (("training", train), ("test", test)):
        has_class = (_targets(split) == number).reshape(len(split), -1).any(dim=1)
        if len(positions := np.flatnonzero(has_class)):
            return _where(name, split, int(positions[0]))
    return "no sample"


def _where(name: str, split: Split, position: int) -> str:
    """Words for the place of a sample; ``name`` is the split's."""
    if split.origin is None:
        return f"sample {position} of the {name} split"
    return split.origin.of(position)


def _place(train: Split, test: Split) -> str:
    """The beginning of a line about both splits; empty, if each sample has its own place."""
    return "" if train.origin or test.origin else "data: "
