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
        vocabulary: number of different tokens, if inputs are sequences of token ids; 0 if they are
            numbers.
    """

    name: str
    input_shape: tuple[int, ...]
    classes: tuple[str, ...]
    superclasses: tuple[str, ...] = ()
    vocabulary: int = 0

    @property
    def num_classes(self) -> int:
        """C."""
        return len(self.classes)
