import pytest

from fedexp.coordination.buffered import Buffered


def test_weights_by_hand() -> None:
    root = Buffered(1, "polynomial", 0.5, 0, 0.0, "received")
    assert [root.weight(tau) for tau in (0, 3, 8)] == pytest.approx([1, 1 / 2, 1 / 3])
    flat = Buffered(1, "polynomial", 0.0, 0, 0.0, "received")
    assert [flat.weight(tau) for tau in (0, 3)] == [1, 1]
    # Xie et al., 2019: 1 up to b, then 1 / (a (t - tau - b) + 1), here a = 10 and b = 4
    hinge = Buffered(1, "hinge", 0.0, 4, 10.0, "received")
    assert [hinge.weight(tau) for tau in (0, 4, 5, 6)] == pytest.approx([1, 1, 1 / 11, 1 / 21])
