"""The description of a dataset, known before the dataset is decoded."""

from dataclasses import dataclass

from fedexp.config.compatibility.traits import Need

SPOKEN = {"\n": "newline", " ": "space", "\t": "tab"}
"""Invisible characters -> their names as classes."""


@dataclass(frozen=True)
class Description:
    """A dataset's shapes and names.

    Attributes:
        name: the dataset's name, for titles and cache keys.
        input_shape: shape of one input: [channels, height, width], [features], or [length] for a
            sequence of tokens.
        classes: the class names, in label order.
        superclasses: for each class, the name of its group of classes; empty if the dataset has no
            groups.
        unseen_classes: the classes of the test split, if they differ from ``classes`` (FC100).
            Predictions then cannot be compared with test labels.
        vocabulary: number of different tokens if inputs are sequences of token ids; otherwise 0.
        per_token: whether each token of a sequence has a target, instead of each sample.
        columns: the name of each input of a table's row: a column of numbers, or COLUMN=CATEGORY.
            Empty if the dataset is no table.
    """

    name: str
    input_shape: tuple[int, ...]
    classes: tuple[str, ...]
    superclasses: tuple[str, ...] = ()
    unseen_classes: tuple[str, ...] = ()
    vocabulary: int = 0
    per_token: bool = False
    columns: tuple[str, ...] = ()

    @property
    def traits(self) -> frozenset[str]:
        """Properties of the data that parts, measures and settings may need."""
        has = {
            Need.CLASS_LABELS: not self.per_token,
            Need.TEST_CLASSES: not self.unseen_classes,
            Need.IMAGES: len(self.input_shape) == 3,
        }
        return frozenset(need for need, it_has in has.items() if it_has)

    @property
    def num_classes(self) -> int:
        """C, the number of classes of the training split."""
        return len(self.classes)

    @property
    def test_labels(self) -> range:
        """Labels of the test split: 0 to C-1, or C to C+U-1 if it has U unseen classes."""
        first = self.num_classes if self.unseen_classes else 0
        return range(first, first + len(self.unseen_classes or self.classes))
