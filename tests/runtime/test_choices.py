"""``engine.threads`` and ``engine=auto``: who decides, and what a resumed run takes."""

import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from federations import compose, federate

import fedexp
from fedexp.distributed.free_cores import FreeCores
from fedexp.distributed.ranks import Ranks
from fedexp.engines.threads import restored_threads
from fedexp.runtime import choices as module
from fedexp.runtime.choices import Choices
from fedexp.state.checkpoint import Checkpoint

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def four_free_of_eight(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(FreeCores, "__call__", lambda self, ranks: 4)
    with restored_threads():
        torch.set_num_threads(8)
        yield


def prepared(*overrides: str, done: Checkpoint | None = None, device: str = "cpu") -> Choices:
    choices = Choices(compose(*overrides).engine, Ranks(), done, log=True)
    choices.limit_threads(torch.device(device), FreeCores())
    return choices


def chosen(choices: Choices, *overrides: str) -> dict[str, int | str]:
    federation = federate("clients.count=4", "clients.per_round=2", "data.subset=300", *overrides)
    return choices.choose(federation.engine, federation.server.broadcast, 2)


def test_a_trial_decides_among_those_that_are_free(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    found = {1: 0.004, 2: 0.002, 4: 0.0019}
    monkeypatch.setattr(module, "seconds_by_threads", lambda *_: found)
    choices = prepared()
    assert torch.get_num_threads() == 4
    with caplog.at_level(logging.INFO):
        assert chosen(choices) == {"threads": 2, "processes": 1}
    assert torch.get_num_threads() == 2
    assert caplog.messages == [
        "engine.threads=auto: 2 of 4 free; a few steps took 4.0 ms with 1, 2.0 ms with 2, "
        "1.9 ms with 4"
    ]


def test_the_slowest_rank_counts_and_the_one_with_the_fewest_cores(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Two(Ranks):
        size = 2

        def all_gather(self, value: Any) -> list[Any]:
            if isinstance(value, dict):
                return [value, {1: 0.004, 2: 0.004}]
            return [value, 2] if type(value) is int else [value, value]

    asked: list[int] = []

    def seconds(engine: Any, message: Any, most: int) -> dict[int, float]:
        asked.append(most)
        return {1: 0.004, 2: 0.002}

    monkeypatch.setattr(module, "seconds_by_threads", seconds)
    choices = Choices(compose().engine, Two(), None, log=False)
    choices.limit_threads(CPU, FreeCores())
    assert chosen(choices) == {"threads": 1, "processes": 2}
    assert (asked, torch.get_num_threads()) == ([2], 1)


@pytest.mark.parametrize(
    ("overrides", "environment", "device", "count"),
    [
        (["engine.threads=3"], {}, "cpu", 3),
        (["engine.threads=3"], {"OMP_NUM_THREADS": "8"}, "cpu", 3),
        ([], {"OMP_NUM_THREADS": "8"}, "cpu", 8),
        ([], {}, "cuda", 8),
    ],
)
def test_what_is_known_needs_no_trial(
    overrides: list[str],
    environment: dict[str, str],
    device: str,
    count: int,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with caplog.at_level(logging.INFO):
        assert chosen(prepared(*overrides, device=device))["threads"] == count
    assert not caplog.messages


@pytest.mark.parametrize(
    ("recorded", "count"),
    [
        ({"threads": 3, "processes": 1}, 3),
        ({"threads": 3, "processes": 2}, 8),  # of two processes, each: no rule for one
        ({}, 8),  # of a version that made no trials
    ],
)
def test_a_resumed_run_makes_no_trial(
    recorded: dict[str, int | str], count: int, tmp_path: Path
) -> None:
    done = Checkpoint(tmp_path, 1, 0.0, recorded)
    assert chosen(prepared(done=done))["threads"] == count


@pytest.mark.parametrize("name", ["serial", "vectorized"])
def test_a_resumed_run_keeps_its_engine(name: str, tmp_path: Path) -> None:
    done = Checkpoint(tmp_path, 1, 0.0, {"threads": 1, "processes": 1, "engine": name})
    choices = prepared("engine=auto", "engine.threads=1", done=done)
    assert chosen(choices, "engine=auto")["engine"] == name


def test_a_run_says_how_many_keeps_them_and_gives_them_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "seconds_by_threads", lambda *_: {1: 0.4, 2: 0.2, 4: 0.2})
    tiny = ["clients.count=4", "clients.per_round=2", "local.epochs=1", "data.subset=300"]
    quiet = ["tracking.wandb.mode=disabled", "tracking.progress=false", "evaluation.personal=off"]
    run = [*tiny, *quiet, "engine.device=cpu"]
    fedexp.run([*run, "rounds=1", f"hydra.run.dir={tmp_path}"])
    assert json.loads((tmp_path / "summary.json").read_text())["computed_with"]["threads"] == 2
    assert torch.get_num_threads() == 8

    def no_trial(*_: Any) -> None:
        raise AssertionError

    monkeypatch.setattr(module, "seconds_by_threads", no_trial)
    resumed = fedexp.run([*run, "rounds=2", f"resume={tmp_path}"])
    assert resumed.summary["computed_with"] == {"threads": 2, "processes": 1}
