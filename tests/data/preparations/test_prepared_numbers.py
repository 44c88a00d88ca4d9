import pandas as pd
import pytest
import torch

from fedexp.data.preparations.numbers import Numbers
from fedexp.errors import InputError


def test_numbers_are_standardised_one_by_one_or_together() -> None:
    own = Numbers((2,), (1.0, 10.0), (2.0, 5.0), "float64")
    assert own.prepare(own.read([[3, 20], [1, 5]])).tolist() == [[1.0, 2.0], [0.0, -1.0]]
    shared = Numbers((1, 2, 2), (2.0,), (4.0,))
    raw = shared.read([[[2.0, 6.0], [10.0, -2.0]]])  # an image without its channel
    assert raw.shape == (1, 1, 2, 2)
    assert shared.prepare(raw).tolist() == [[[[0.0, 1.0], [2.0, -1.0]]]]


def test_by_default_they_stay_as_they_are() -> None:
    table = pd.DataFrame({"a": [0.1, 0.2], "b": [3, 4]})
    plain = Numbers((2,))
    assert torch.equal(plain.prepare(plain.read(table)), torch.tensor([[0.1, 3.0], [0.2, 4.0]]))


def test_a_tensor_is_read_like_an_array() -> None:
    raw = torch.tensor([[0.1, 3.0], [0.2, 4.0]])
    assert torch.equal(Numbers((2,)).read(raw), raw)
    assert torch.equal(Numbers((2,)).read(raw.numpy()), raw)


@pytest.mark.parametrize("raw", [[[1.0, 2.0, 3.0]], [["a", "b"]], [], 3.0])
def test_what_does_not_fit_is_refused(raw: object) -> None:
    with pytest.raises(InputError, match=r"^predict: takes numbers \[n, 2\], float32"):
        Numbers((2,)).read(raw)
