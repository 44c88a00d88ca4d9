"""What is known about a dataset before it is decoded."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Description:
    """Shape and names.

    Attributes:
        name: for titles and cache keys.
        input_shape: shape of one input, [channels, height, width] or [features].
        classes: the class names, in label order.
        superclasses: the group of each class, where the dataset has groups (CIFAR-100).
    """

    name: str
    input_shape: tuple[int, ...]
    classes: tuple[str, ...]
    superclasses: tuple[str, ...] = ()

    @property
    def num_classes(self) -> int:
        """C."""
        return len(self.classes)
