from collections import Counter

from fedexp.data.readers.cifar100_classes import CLASSES, SUPERCLASSES


def test_a_hundred_classes_in_twenty_groups_of_five() -> None:
    assert len(CLASSES) == 100
    assert list(CLASSES) == sorted(CLASSES)
    assert set(Counter(SUPERCLASSES).values()) == {5}
    assert len(set(SUPERCLASSES)) == 20
    assert SUPERCLASSES[CLASSES.index("wolf")] == "large carnivores"
