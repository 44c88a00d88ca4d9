import numpy as np
import pytest

from fedexp.core.token_rows import IGNORED
from fedexp.data.preparations.text import Characters
from fedexp.data.readers.characters import each_next, overlapping, windows
from fedexp.data.readers.leaf import CHARACTERS


def test_ids_are_places_in_the_alphabet() -> None:
    ids, known = Characters("zab", 1).encode("bazq")
    assert ids.tolist() == [2, 1, 0, 2]
    assert known.tolist() == [True, True, True, False]
    assert ids.dtype == np.int16


def test_any_unicode_character_is_one_character() -> None:
    assert Characters("é𝄞a", 1).encode("𝄞éa")[0].tolist() == [1, 0, 2]


def test_leaf_s_alphabet() -> None:
    alphabet = CHARACTERS.alphabet
    assert len(alphabet) == len(set(alphabet)) == 80
    for letter in ("\n", " ", "A", "z", "}"):
        assert CHARACTERS.encode(letter)[0].tolist() == [alphabet.index(letter)]
    about = CHARACTERS.describe("plays")
    assert about.classes[:3] == ("newline", "space", "!")
    assert (about.num_classes, about.vocabulary, about.input_shape) == (80, 80, (80,))


@pytest.mark.parametrize(("length", "stride"), [(3, 1), (3, 2), (3, 4), (1, 1), (5, 3)])
def test_windows_and_how_many_overlap(length: int, stride: int) -> None:
    ids = np.arange(20)
    inputs, labels = windows(ids, length, stride)
    starts = range(0, 20 - length, stride)
    assert inputs.tolist() == [list(range(start, start + length)) for start in starts]
    assert labels.tolist() == [start + length for start in starts]
    covered = [{*x, y} for x, y in zip(inputs.tolist(), labels.tolist(), strict=True)]
    assert sum(bool(covered[0] & other) for other in covered[1:]) == overlapping(length, stride)


@pytest.mark.parametrize("size", [0, 3])
def test_a_text_without_a_next_character_has_no_window(size: int) -> None:
    inputs, labels = windows(np.zeros(size, np.int16), 3, 1)
    assert inputs.shape == (0, 3)
    assert labels.shape == (0,)


@pytest.mark.parametrize(("length", "stride"), [(3, 1), (3, 2), (3, 3), (3, 4), (1, 1), (5, 3)])
def test_each_next_character_is_a_target_once(length: int, stride: int) -> None:
    inputs, labels = windows(np.arange(20), length, stride)
    targets = each_next(inputs, labels, stride)
    scored = targets != IGNORED
    assert targets.dtype == np.int64
    assert np.array_equal(targets[scored], inputs[scored] + 1)
    assert np.array_equal(targets[:, -1], labels)
    values, times = np.unique(targets[scored], return_counts=True)
    assert set(times) == {1}
    gaps = max(0, stride - length)
    assert len(values) == (len(inputs) - 1) * (stride - gaps) + length
