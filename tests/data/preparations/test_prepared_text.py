import pytest

from fedexp.data.preparations.text import Characters
from fedexp.data.readers.characters import Alphabet
from fedexp.errors import InputError

LETTERS = "ba c"


def test_the_ids_are_those_of_the_alphabet() -> None:
    text = Characters(LETTERS, 4)
    raw = text.read(["xx cab", "zzab"])
    assert raw[0].tolist() == [ord(letter) for letter in " cab"]
    for row, expected in zip(text.prepare(raw), (" cab", "zzab"), strict=True):
        assert row.tolist() == Alphabet(LETTERS).encode(expected)[0].tolist()


@pytest.mark.parametrize("raw", [["abc"], [1, 2], []])
def test_what_does_not_fit_is_refused(raw: object) -> None:
    with pytest.raises(InputError, match=r"^predict: takes (a list of )?texts"):
        Characters(LETTERS, 4).read(raw)
