import pytest
import torch

from fedexp.drawing.shown_clients import evenly_spaced


@pytest.mark.parametrize(
    ("count", "shown"),
    [(0, []), (1, [0]), (4, [0, 1, 2, 3]), (5, [0, 2, 4]), (8, [0, 2, 4, 6]), (9, [0, 3, 6])],
)
def test_every_nth_client_is_shown_and_no_more_than_asked_for(count: int, shown: list[int]) -> None:
    assert evenly_spaced(torch.arange(count), 4).tolist() == shown
