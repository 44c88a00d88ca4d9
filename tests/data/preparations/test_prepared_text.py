import pytest

from fedexp.data.preparations.text import Characters
from fedexp.errors import InputError

LETTERS = "ba c"


def test_ids_are_places_in_the_alphabet_and_unknown_letters_get_the_last() -> None:
    text = Characters(LETTERS, 4)
    raw = text.read(["xx cab", "zzab"])
    assert raw[0].tolist() == [ord(letter) for letter in " cab"]
    assert text.prepare(raw).tolist() == [[2, 3, 1, 0], [3, 3, 1, 0]]


@pytest.mark.parametrize("raw", [["abc"], [1, 2], []])
def test_what_does_not_fit_is_refused(raw: object) -> None:
    with pytest.raises(InputError, match=r"^predict: takes (a list of )?texts"):
        Characters(LETTERS, 4).read(raw)
