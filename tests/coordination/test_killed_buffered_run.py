"""A buffered run that is killed goes on with the clients in flight, which do not train again."""

import signal
from pathlib import Path

import pytest
from support.killed_runs import ended, outcome

SMALL = (
    *("algorithm=scaffold", "rounds=6", "clients.count=6", "clients.per_round=4", "resume=auto"),
    *("data.subset=200", "local.epochs=1", "checkpoint.every=2", "optimizer.momentum=0"),
    *(
        "optimizer.weight_decay=0",
        "system=phones",
        "coordination=buffered",
        "coordination.buffer=2",
    ),
    *("measure.personal.every=2", "tracking.wandb.mode=disabled", "tracking.progress=false"),
)


@pytest.mark.slow
@pytest.mark.parametrize("overrides", [(), ("engine=vectorized",)])
def test_a_killed_run_ends_as_if_it_had_not_been(
    overrides: tuple[str, ...], tmp_path: Path
) -> None:
    words = [*SMALL, *overrides]
    assert ended(tmp_path / "whole", *words) == 0
    for dies_in in (4, 6):
        assert ended(tmp_path / "killed", *words, dies_in=dies_in) == -signal.SIGKILL
    assert ended(tmp_path / "killed", *words) == 0
    whole = outcome(tmp_path / "whole", "")
    assert outcome(tmp_path / "killed", "") == whole
    assert max(each.get("coordination/staleness", 0) for each in whole[1]) > 0
