import logging
from collections.abc import Sequence

import pytest
import torch

from fedexp.errors import InputError
from fedexp.messages import Update
from fedexp.quarantine import Quarantine


def update(client: int, w: Sequence[float] = (1.0, 2.0), report: float = 0.0) -> Update:
    weights = {"w": torch.tensor(w), "seen": torch.tensor(3)}
    return Update(client, 1, weights, {"head": {"r": torch.tensor(report)}})


@pytest.mark.parametrize(
    ("bad", "named"),
    [
        (update(7, w=[1.0, torch.nan]), "(w)"),
        (update(7, w=[torch.inf, 0.0]), "(w)"),
        (update(7, report=-torch.inf), "(head: r)"),
        (update(7, w=[torch.nan, 0.0], report=torch.nan), "(w and 1 more)"),
    ],
)
def test_the_bad_one_is_left_out_and_named(
    bad: Update, named: str, caplog: pytest.LogCaptureFixture
) -> None:
    quarantine = Quarantine("quarantine")
    with caplog.at_level(logging.WARNING):
        passed = list(quarantine.watch([update(1), bad, update(9)], round=4))
    assert [each.client for each in passed] == [1, 9]
    said = f"round 4: the update of client 7 is not finite {named}; it is left out"
    assert [record.message for record in caplog.records] == [said]
    assert quarantine.clients == [7]
    assert quarantine.metrics() == {"clients/quarantined": 1}


def test_every_round_starts_anew() -> None:
    quarantine = Quarantine("quarantine")
    assert list(quarantine.watch([update(1, report=torch.nan)], 1)) == []
    assert len(list(quarantine.watch([update(1)], 2))) == 1
    assert quarantine.metrics() == {"clients/quarantined": 0}


def test_large_and_empty_are_finite() -> None:
    largest = update(1, w=[torch.finfo().max, torch.finfo().min])
    nothing = Update(2, 1, {})
    assert list(Quarantine("raise").watch([largest, nothing], 1)) == [largest, nothing]


def test_raise_names_the_client() -> None:
    updates = Quarantine("raise").watch([update(5, report=torch.nan)], 2)
    with pytest.raises(InputError, match="round 2: the update of client 5 is not finite"):
        list(updates)
