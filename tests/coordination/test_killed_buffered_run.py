"""A buffered run that is killed goes on with the clients in flight, which do not train again."""

import json
import signal
from pathlib import Path
from typing import Any

import pytest
from command_line import PROCESSES

import fedexp
from fedexp.federation import Federation

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


def run(folder: Path, overrides: tuple[str, ...], dies_in: int = 0) -> None:
    start_round = Federation.start_round

    def start(self: Federation, round: int) -> Any:
        if round == dies_in:
            self.log_pending()
            signal.raise_signal(signal.SIGKILL)
        return start_round(self, round)

    Federation.start_round = start  # type: ignore[method-assign]
    fedexp.run([f"hydra.run.dir={folder}", *SMALL, *overrides])


def ended(folder: Path, overrides: tuple[str, ...], dies_in: int = 0) -> int | None:
    process = PROCESSES.Process(target=run, args=(folder, overrides, dies_in))
    process.start()
    process.join()
    return process.exitcode


def outcome(folder: Path) -> tuple[str, list[dict[str, Any]], str]:
    """The digest of the final weights, each round's numbers but for real time, and the turns."""
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    timeless = [{k: v for k, v in each.items() if not k.startswith("time/")} for each in lines]
    digest = json.loads((folder / "summary.json").read_text())["weights_digest"]
    return digest, timeless, (folder / "turns.csv").read_text()


@pytest.mark.parametrize("overrides", [(), ("engine=vectorized", "evaluation.overlap=true")])
def test_a_killed_run_ends_as_if_it_had_not_been(
    overrides: tuple[str, ...], tmp_path: Path
) -> None:
    assert ended(tmp_path / "whole", overrides) == 0
    for dies_in in (4, 6):
        assert ended(tmp_path / "killed", overrides, dies_in) == -signal.SIGKILL
    assert ended(tmp_path / "killed", overrides) == 0
    whole = outcome(tmp_path / "whole")
    assert outcome(tmp_path / "killed") == whole
    assert max(each.get("coordination/staleness", 0) for each in whole[1]) > 0
