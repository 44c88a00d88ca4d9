"""Whom Oort invites: counted by hand, and the table of the results from its file."""

from pathlib import Path
from types import ModuleType

import pandas as pd
import pytest
from support.federations import federate

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "scripts" / "results"
COLUMNS = [
    (limit, oort)
    for limit in ("system.invite=13", "system.deadline=0.5")
    for oort in ("before", "after")
]
ROWS = {
    "invitations of old phones (5.6 of 40 clients)": ("invitations of old", 0),
    "cheap phones (9.6)": ("invitations of cheap", 0),
    "common phones (10.4)": ("invitations of common", 0),
    "fast phones (14.4)": ("invitations of fast", 0),
    "to clients whose updates were never merged": ("to clients never merged", 0),
    "most to one of these clients": ("most to one of them", 0),
    "simulated seconds to accuracy 0.8": ("time_to/0.8", 1),
    "simulated seconds to accuracy 0.9": ("time_to/0.9", 1),
    "simulated seconds of 60 rounds": ("seconds", 1),
    "accuracy, mean of the last five rounds": ("accuracy", 3),
}


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


def test_the_table_of_the_results_is_the_file() -> None:
    found = pd.read_csv(RESULTS / "digits_oort.csv").groupby(["limit", "oort"])
    text = (RESULTS / "time.md").read_text()
    assert (found.size() == 5).all()
    for name, (column, digits) in ROWS.items():
        values = found[column].agg(["mean", "std"])
        cells = [
            f"{mean:.{digits}f} ± {std:.{digits}f}" for mean, std in values.loc[COLUMNS].values
        ]
        assert f"| {name} | {' | '.join(cells)} |" in text
