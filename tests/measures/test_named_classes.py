import pytest

from fedexp.core.description import Description
from fedexp.errors import InputError
from fedexp.measures.named_classes import class_numbers, superclass_pairs

ABOUT = Description(
    "things", (1,), ("oak_tree", "brown bear", "shark"), ("trees", "large mammals", "fish")
)


def test_classes_by_name_and_number() -> None:
    assert class_numbers(["shark", 0, "Brown-Bear", 2], ABOUT) == [2, 0, 1]
    assert class_numbers([], ABOUT) == [0, 1, 2]


def test_names_that_differ_only_in_case_are_told_apart() -> None:
    letters = Description("letters", (1,), ("A", "B", "a", "b"))
    assert class_numbers(["A", "b", "B", "a"], letters) == [0, 3, 1, 2]


def test_super_classes_by_name() -> None:
    assert superclass_pairs([["large_mammals", "Fish"]], ABOUT) == [("large mammals", "fish")]
    assert superclass_pairs([], Description("digits", (1,), ("0", "1"))) == []


def test_unknown_names() -> None:
    with pytest.raises(InputError, match=r"measure\.features\.classes=\['oak_tre'\]: .* oak_tree$"):
        class_numbers(["oak_tre"], ABOUT)
    with pytest.raises(InputError, match=r"3 is not a class of things, numbers 0 to 2$"):
        class_numbers([3], ABOUT)
    with pytest.raises(InputError, match=r"fsh is not a super-class of things; .* fish$"):
        superclass_pairs([["trees", "fsh"]], ABOUT)
    with pytest.raises(InputError, match=r"digits has no super-classes; should be \[\]"):
        superclass_pairs([["a", "b"]], Description("digits", (1,), ("0", "1")))
