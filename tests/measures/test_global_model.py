"""The rounds in which the global model is scored."""

import pytest
from support.federations import federate

SMALL = ["clients.count=4", "clients.per_round=2", "local.epochs=1", "data.validation=0.2"]
SMALL += ["data.subset=300", "rounds=7", "measure.personal=null"]


@pytest.mark.parametrize(
    ("options", "scored"),
    [
        ([], [1, 2, 3, 4, 5, 6, 7]),
        (["measure.global.first=4"], [4, 5, 6, 7]),
        (["measure.global.first=3", "measure.global.every=2"], [4, 6, 7]),
        (["measure.global.first=9"], [7]),
    ],
)
def test_rounds_before_the_first_are_not_scored(options: list[str], scored: list[int]) -> None:
    federation = federate(*SMALL, *options)
    rounds = {round: federation.run_round(round).metrics for round in range(1, 8)}
    for name in ("global/accuracy", "validation/accuracy"):
        assert [round for round, metrics in rounds.items() if name in metrics] == scored
