from collections.abc import Iterator

import pytest

from fedexp.core.messages import Update
from fedexp.distributed import placement
from fedexp.distributed.placement import Speeds


class Clock:
    """A clock that is set by hand."""

    def __init__(self) -> None:
        self.now = 100.0

    def perf_counter(self) -> float:
        return self.now


def test_a_round_is_timed_until_its_last_update(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr(placement, "time", clock)

    def training() -> Iterator[Update]:
        for samples in (30, 20):
            clock.now += samples / 10
            yield Update(0, 7, {}, samples=samples)

    found = Speeds(2, measured=True)
    for _ in found.timed(training()):
        clock.now += 1  # what is done with an update belongs to it
    assert found.own_round() == (50, 7.0)
    assert found.own_round() == (0, 0.0)


def test_speeds_are_relative_to_their_mean() -> None:
    found = Speeds(3, measured=True)
    assert found.relative() == [1, 1, 1]
    found.add_round([(300, 1.0), (100, 1.0), (0, 0.0)])
    assert found.relative() == [1.5, 0.5, 1]  # nothing is known of the last


def test_later_rounds_count_more() -> None:
    found = Speeds(2, measured=True)
    found.add_round([(100, 1.0), (100, 1.0)])
    found.add_round([(100, 1.0), (50, 1.0)])
    found.add_round([(0, 0.0), (0, 0.0)])  # nobody trained
    slower = (50 + 50) / 1.5
    assert found.relative() == pytest.approx([100 / (50 + slower / 2), slower / (50 + slower / 2)])


def test_speeds_that_are_not_measured_are_equal() -> None:
    found = Speeds(2, measured=False)
    found.add_round([(300, 1.0), (100, 1.0)])
    assert found.relative() == [1, 1]
