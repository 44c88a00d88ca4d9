import pytest

from fedexp.drawing.panels import panels, widen


def test_noise_is_not_magnified() -> None:
    _, (axes,) = panels(1)
    axes.plot([96.4, 96.4 + 1e-8])
    widen(axes)
    low, high = axes.get_ylim()
    assert high - low == pytest.approx(0.964, abs=0.01)
