"""What is known about a dataset before it is decoded."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Description:
    """Shape and names.

    Attributes:
        name: for titles and cache keys.
        input_shape: shape of one input, [channels, height, width], [features] or, of a sequence of
            tokens, [length].
        classes: the class names, in label order.
        superclasses: the group of each class, where the dataset has groups (CIFAR-100).
        unseen_classes: the classes of the test split, where they are others than ``classes``
            (FC100). Then nothing that compares a prediction with a test label can be measured.
        vocabulary: number of different tokens, if inputs are sequences of token ids; 0 if they are
            numbers.
        per_token: whether each token of a sequence has a target, not each sample one.
    """

    name: str
    input_shape: tuple[int, ...]
    classes: tuple[str, ...]
    superclasses: tuple[str, ...] = ()
    unseen_classes: tuple[str, ...] = ()
    vocabulary: int = 0
    per_token: bool = False

    @property
    def num_classes(self) -> int:
        """C, the classes of the training split."""
        return len(self.classes)

    @property
    def test_labels(self) -> range:
        """Labels of the test split: 0 to C-1, or C to C+U-1 if it has U unseen classes instead."""
        first = self.num_classes if self.unseen_classes else 0
        return range(first, first + len(self.unseen_classes or self.classes))
