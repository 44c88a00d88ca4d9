import pytest

from fedexp.data.preparations.tokens import Tokens
from fedexp.errors import InputError


def test_short_sequences_are_padded_in_front_and_long_ones_cut() -> None:
    tokens = Tokens(3, 6, padding=5)
    assert tokens.read([[1], [1, 2, 3, 4], [4, 3, 2]]).tolist() == [[5, 5, 1], [1, 2, 3], [4, 3, 2]]


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        ([[1, 2]], "sequence 0 has 2 tokens"),
        ([[1, 2, 3], [1, 2, 6]], "sequence 1 has an id outside this range"),
        ([[1, 2, 0.5]], "should be lists of whole numbers"),
        ([], "should be lists of whole numbers"),
    ],
)
def test_what_does_not_fit_is_refused(raw: object, message: str) -> None:
    with pytest.raises(InputError, match=message):
        Tokens(3, 6).read(raw)
