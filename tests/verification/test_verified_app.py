"""An app for Flower follows from its config, and the simulation repeats its runs."""

from pathlib import Path

import pytest
from support.fake_grid import FakeGrid, bundle, run
from support.verified import edit_rounds, ways

from fedexp.verification.pack import pack
from fedexp.verification.sample import verify_runs
from fedexp.verification.verdict import Outcome, worst
from fedexp.verification.verify import verify


@pytest.fixture
def app(tmp_path: Path) -> Path:
    """An app, with a run of it on nodes in its folder."""
    module = bundle(tmp_path, "algorithm=fedavg")
    run(FakeGrid(module, tmp_path / "states"), module.parent / "outputs")
    return module.parent


def test_an_app_and_its_run_verify_until_a_file_is_changed(app: Path) -> None:
    found = verify(app, ways(9))
    lines = ["every file follows from its config", "the same bits through round 3 of 3"]
    assert [each.line for each in found] == lines, found
    (detail,) = found[1].details
    assert detail.startswith(
        "federation.json: the clients were on nodes of Flower, so partition.csv"
    )
    (app / "fedexp_app" / "server.py").write_text("import evil\n")
    (app / "fedexp_app" / "more.py").write_text("")
    (folder,) = (
        path.parent for path in app.rglob("metrics.jsonl") if "checkpoints" not in str(path)
    )
    edit_rounds(folder, lambda rounds: rounds[1].update({"train/loss": 0.5}))
    found = verify(app, ways(2))
    assert worst(found) == Outcome.DIFFERS
    assert found[0].details == [
        "fedexp_app/server.py: differs in line 1 from the file that fedexp writes",
        "fedexp_app/more.py: was added",
    ]
    assert "differs in round 2: train/loss is 0.5" in found[1].line


def test_an_app_verifies_in_a_folder_of_another_name(tmp_path: Path) -> None:
    app = bundle(tmp_path, "algorithm=fedavg").parent
    (found,) = verify(app.rename(tmp_path / "received"), ways(1))
    assert (found.outcome, found.details) == (Outcome.SAME, [])


def test_rounds_from_a_lost_node_on_cannot_be_compared(tmp_path: Path) -> None:
    module = bundle(tmp_path, "algorithm=fedavg", "clients.per_round=4")
    grid = FakeGrid(module, tmp_path / "states")
    for lost, line in (
        (2, "the same bits through round 1 of 3; later rounds had other code"),
        (1, "cannot be trained again"),
    ):
        grid.absent = lambda kind, round, client, at=lost: (kind, round, client) == ("train", at, 1)
        (found,) = verify_runs(run(grid, tmp_path / str(lost)).folder, ways(9))
        assert (found.outcome, found.line[: len(line)]) == (Outcome.UNKNOWN, line)
        assert found.details[0].startswith(
            f"federation.json: a node's reply or state was lost or refused in round {lost}, "
        )


def test_a_run_with_secret_cohorts_cannot_be_compared(tmp_path: Path) -> None:
    module = bundle(tmp_path, "algorithm=fedavg", "aggregator=private", "rounds=1")
    folder = run(FakeGrid(module, tmp_path / "states"), tmp_path / "runs").folder
    (found,) = verify_runs(folder, ways(1))
    assert found.outcome == Outcome.UNKNOWN
    assert found.details == [
        "aggregator: on Flower its noise and cohorts do not follow from the seed"
    ]


def test_a_packed_run_on_nodes_verifies(app: Path, tmp_path: Path) -> None:
    pack(app / "outputs", tmp_path / "artefact.zip")
    found = verify(tmp_path / "artefact.zip", ways(1))
    assert worst(found) == Outcome.SAME, found
    assert "the same bits through round 1 of 3" in [each.line for each in found]
