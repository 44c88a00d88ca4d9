"""The figures of the page of Shakespeare's text are those of its file."""

import pytest
from generate.results import RESULTS
from support.result_pages import body, curve, lines_by_round, prose, runs, table_line

METHODS = {
    "FedAvg": "algorithm=fedavg",
    "FedProx": "algorithm=fedprox",
    "SCAFFOLD, no momentum": "algorithm=scaffold optimizer.momentum=0",
}
ROUNDS = (1, 2, 4, 6, 8, 10)


def curves() -> dict[str, dict[int, float]]:
    stored = runs("shakespeare")
    return {name: curve(stored[overrides]) for name, overrides in METHODS.items()}


@pytest.mark.parametrize("name", METHODS)
def test_a_row_is_a_run_of_the_file(name: str) -> None:
    text = (RESULTS / "shakespeare.md").read_text()
    table = body(text, table_line("global accuracy in round", ROUNDS))
    assert len(table) == len(METHODS)
    assert lines_by_round(curves(), ROUNDS, bold=False)[name] in table


def test_the_federation_is_that_of_the_overrides() -> None:
    text = prose((RESULTS / "shakespeare.md").read_text())
    said = (
        "20 of them are clients, ten a round. Each of 40 characters has the next one as its target"
    )
    assert f"{said}; an LSTM of width 128, two local epochs; seed 0" in text
    own = {"clients.count=20", "clients.per_round=10", "data.sequence_length=40"}
    own |= {"model.hidden=128", "local.epochs=2", "data.targets=each"}
    for run in runs("shakespeare").values():
        assert own <= set(run["overrides"])


def test_all_three_learn() -> None:
    assert "all three learn" in (RESULTS / "shakespeare.md").read_text()
    for own in curves().values():
        assert own[1] < own[4] < own[10]
