"""Whom Oort invites, counted by hand."""

from pathlib import Path
from types import ModuleType

import pandas as pd
import pytest
from support.federations import federate

ROOT = Path(__file__).parents[2]


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    from papers import oort_invitations

    return oort_invitations


def test_invitations_by_hand(script: ModuleType) -> None:
    outcomes = [(0, "sent"), (1, "surplus"), (0, "surplus"), (1, "late"), (2, "dropped")]
    turns = pd.DataFrame(outcomes, columns=["client", "outcome"])
    found = script.invitations(turns, pd.Series(["fast", "old", "cheap", "old"]))
    assert {name: found[f"{name} phones"] for name in script.KINDS} == {
        "old": 2,
        "cheap": 1,
        "common": 0,
        "fast": 1,
    }
    assert [found[f"invitations of {name}"] for name in script.KINDS] == [2, 1, 0, 2]
    assert found["invitations"] == 5
    assert (found["to clients never merged"], found["most to one of them"]) == (3, 2)


def test_the_classes_are_those_of_a_run(script: ModuleType) -> None:
    devices = federate(
        "system=phones", "clients.per_round=9", "clients.count=9", "data.subset=200"
    ).system.devices
    assert devices is not None
    kinds = script.kinds_of_phones(9, seed=0)
    assert all((kinds == "old") == (devices.upload == 1e5))
    assert (kinds == "old").any()
