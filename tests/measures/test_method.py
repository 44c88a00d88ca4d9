"""A correlation that stays near 0 is a warning, whatever the sampler."""

import logging
from types import SimpleNamespace
from typing import Any

import pytest

from fedexp.measures.method import Method


def warnings_of(values: list[float | None], caplog: pytest.LogCaptureFixture) -> list[int]:
    """The rounds in which the measure warns, given each round's correlation; None: none known."""
    method, rounds = Method(), []
    for number, value in enumerate(values, start=1):
        metrics = {} if value is None else {"sampler/estimate_spearman": value}
        after: Any = SimpleNamespace(
            is_last=False,
            ranks=SimpleNamespace(is_first=True),
            server=SimpleNamespace(metrics=lambda metrics=metrics: metrics),
        )
        with caplog.at_level(logging.WARNING):
            assert method(after).metrics == metrics
        rounds += [number] * len(caplog.records)
        caplog.clear()
    return rounds


@pytest.mark.parametrize(
    ("values", "warned"),
    [
        ([0.54, -0.30, -0.39, -0.18, 0.1, 0.05, 0.0, 0.0], [6]),
        ([None, None, 0.1, 0.1, 0.1, 0.1, 0.1] + [-0.9] * 9, [7]),
        ([0.1, 0.1, 0.1, 0.1, 0.6, 0.1, 0.1], []),
        ([0.1] * 5 + [0.6] + [0.1] * 9, [5]),
        ([0.5, 0.7, 0.9] * 5, []),
    ],
    ids=["FedNH's head", "late", "recovers", "warned before", "informative"],
)
def test_five_rounds_near_0_in_a_row_warn_once(
    values: list[float | None], warned: list[int], caplog: pytest.LogCaptureFixture
) -> None:
    assert warnings_of(values, caplog) == warned
