"""A run that accepts nothing any more ends, saved, with an error."""

import logging
from pathlib import Path

import pytest
import torch
from support.command_line import fedexp as command
from support.federations import federate
from support.short_runs import NO_PICTURES, saved_round

import fedexp
from fedexp.errors import InputError
from fedexp.state.files import load_tensors

TINY = ["algorithm=fedavg", "clients.count=4", "clients.per_round=2", "local.epochs=1"]
TINY += ["measure.personal=null", "tracking.wandb.mode=disabled", "data.subset=300", *NO_PICTURES]
BROKEN = ["faults=unreliable", "faults.nan=1", "faults.drop=0", "faults.straggle=0"]
THREE = "limits.idle_rounds=3"
ENDED = r"^limits\.idle_rounds=3: no update was accepted in the last {} rounds up to round {}"


def run(folder: Path, *overrides: str) -> fedexp.RunResult:
    return fedexp.run([*TINY, "rounds=6", f"hydra.run.dir={folder}", *overrides])


@pytest.mark.parametrize("ranks", [[], ["engine.devices=2", "engine.device=cpu"]])
def test_a_run_that_accepts_nothing_ends_saved(ranks: list[str], tmp_path: Path) -> None:
    folder = tmp_path / "run"
    with pytest.raises(InputError, match=ENDED.format(3, 3) + f", which is saved in {folder}"):
        run(folder, *BROKEN, THREE, *ranks)
    assert saved_round(folder) == 3
    assert len((folder / "metrics.jsonl").read_text().splitlines()) == 3


def test_the_count_goes_on_in_a_resumed_run(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    stopped = run(folder, *BROKEN, THREE, "limits.minutes=0.00001")
    assert stopped.summary["rounds"] == 1
    with pytest.raises(InputError, match=ENDED.format(3, 3)):
        run(folder, *BROKEN, THREE, "limits.minutes=null", f"resume={folder}")
    with pytest.raises(InputError, match=ENDED.format(4, 4)):
        run(folder, *BROKEN, THREE, "limits.minutes=null", f"resume={folder}")
    whole = run(
        folder, *BROKEN, "limits.minutes=null", "limits.idle_rounds=null", f"resume={folder}"
    )
    assert whole.summary["rounds"] == 6


def test_without_checkpoints_nothing_is_said_to_be_saved(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=ENDED.format(3, 3) + "; use a smaller"):
        run(tmp_path / "run", *BROKEN, THREE, "checkpoint.keep=0")
    assert len((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()) == 3


def test_only_consecutive_rounds_count() -> None:
    federation = federate(*TINY, *BROKEN)
    federation.run_round(1)
    federation.run_round(2)
    assert federation.server.idle_rounds == 2
    federation.engine.resources.faults.nan = 0  # type: ignore[attr-defined]
    federation.run_round(3)
    assert federation.server.idle_rounds == 0


def test_a_learning_rate_that_is_too_large_ends_the_command(tmp_path: Path) -> None:
    overrides = ["optimizer.lr=1e3", "optimizer.momentum=0.9", "rounds=30", THREE]
    done = command(*TINY, *overrides, "hydra.run.dir=run", folder=tmp_path)
    assert done.returncode == 1
    last = done.stderr.splitlines()[-1]
    assert last.startswith(
        "fedexp: limits.idle_rounds=3: no update was accepted in the last 3 rounds"
    )
    assert (tmp_path / "run" / "checkpoints").is_dir()


ATTACK = ["faults=byzantine", "faults.attack=scale", "faults.factor=1e25", "clients.per_round=4"]


@pytest.mark.parametrize("aggregator", ["yogi", "adam"])
def test_a_merged_model_that_is_not_finite_is_refused(
    aggregator: str, caplog: pytest.LogCaptureFixture
) -> None:
    federation = federate(*TINY, f"aggregator={aggregator}", *ATTACK, "faults.byzantine=0.5")
    before = federation.server.weights
    for round in (1, 2):
        caplog.clear()
        with caplog.at_level(logging.WARNING):
            metrics = federation.run_round(round).metrics
        assert (metrics["server/quarantined"], metrics["clients/quarantined"]) == (1, 0)
        (said,) = caplog.messages
        assert said.startswith(f"round {round}: the merged model is not finite (")
        assert said.endswith("; the global model stays as it was")
    after = federation.server.weights
    assert all(torch.equal(after[name], value) for name, value in before.items())
    federation.engine.resources.faults.byzantine_clients = frozenset()  # type: ignore[attr-defined]
    assert federation.run_round(3).metrics["server/quarantined"] == 0
    after = federation.server.weights
    assert all(value.isfinite().all() for value in after.values())
    assert not any(torch.equal(after[name], value) for name, value in before.items())


@pytest.mark.parametrize(
    "ranks", [[], pytest.param(["engine.devices=2", "engine.device=cpu"], marks=pytest.mark.slow)]
)
def test_the_final_model_of_an_attacked_run_is_finite(ranks: list[str], tmp_path: Path) -> None:
    folder = tmp_path / "run"
    options = ["aggregator=yogi", *ATTACK, "faults.byzantine=0.5", "rounds=3", *ranks]
    run(folder, *options, "limits.minutes=0.00001")
    done = run(folder, *options, "limits.minutes=null", f"resume={folder}")
    assert done.metrics["server/quarantined"].tolist() == [1, 1, 1]
    final = load_tensors(folder / "checkpoints" / "final.pt")
    assert all(value.isfinite().all() for value in final.values())
    assert done.metrics["global/loss"].nunique() == 1  # the initial model


def test_a_merged_model_that_is_not_finite_can_end_the_run() -> None:
    federation = federate(
        *TINY, "aggregator=yogi", *ATTACK, "faults.byzantine=0.5", "on_bad_update=raise"
    )
    with pytest.raises(InputError, match=r"^on_bad_update=raise: round 1: the merged model is not"):
        federation.run_round(1)
