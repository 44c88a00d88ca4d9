"""``engine.threads``: the rule of ``auto``, and who decides otherwise."""

import json
import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import joblib
import pytest
import torch
from support.federations import compose

import fedexp
from fedexp.distributed.ranks import Ranks
from fedexp.engines.threads import restored_threads, set_threads, worthwhile_threads
from fedexp.models.cnn import conv2cifar
from fedexp.models.mlp import mlp

IMAGES = (3, 32, 32)
SMALL = partial(mlp, hidden=[50], feature_dim=64, rectify=True, batch_norm=False)
LARGE = partial(conv2cifar, feature_dim=192)


@pytest.fixture(autouse=True)
def eight_cores(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(joblib, "cpu_count", lambda: 8)
    with restored_threads():
        torch.set_num_threads(8)
        yield


class Two(Ranks):
    """This process and another one, which gathers ``others`` where it has that type."""

    def __init__(self, *others: Any) -> None:
        self._others = {type(each): each for each in others}

    def all_gather(self, value: Any) -> list[Any]:
        return [value, self._others.get(type(value), value)]


def threads(
    *overrides: str, model: Any = LARGE, device: str = "cpu", ranks: Ranks | None = None
) -> int:
    """PyTorch's number for batches of 64 images."""
    config = compose("local.batch_size=64", *overrides)
    set_threads(config, model, IMAGES, torch.device(device), ranks or Ranks())
    return torch.get_num_threads()


@pytest.mark.parametrize(
    ("mflops", "most", "count"),
    [(0, 8, 1), (79, 8, 1), (80, 8, 2), (135, 8, 3), (10**6, 8, 8), (10**6, 1, 1), (10**6, 0, 1)],
)
def test_each_thread_has_enough_work_and_a_core(mflops: int, most: int, count: int) -> None:
    assert worthwhile_threads(mflops * 10**6, most) == count


def test_small_steps_have_one_thread_and_large_ones_all_cores() -> None:
    assert threads(model=SMALL) == 1
    torch.set_num_threads(8)
    assert threads(model=LARGE) == 8


def test_a_smaller_batch_is_a_smaller_step() -> None:
    assert threads("local.batch_size=2") == 1


def test_more_than_pytorch_has_are_not_taken() -> None:
    torch.set_num_threads(3)
    assert threads() == 3


def test_processes_that_may_use_the_same_cores_share_them() -> None:
    assert threads(ranks=Two()) == 4


def test_processes_with_cores_of_their_own_do_not_share() -> None:
    assert threads(ranks=Two(("elsewhere", []))) == 8


def test_all_ranks_have_the_number_of_the_one_with_the_fewest() -> None:
    assert threads(ranks=Two(("elsewhere", []), 3)) == 3


@pytest.mark.parametrize(
    ("overrides", "environment", "device", "count"),
    [
        (["engine.threads=3"], {}, "cpu", 3),
        (["engine.threads=3"], {"OMP_NUM_THREADS": "8"}, "cpu", 3),
        ([], {"OMP_NUM_THREADS": "8"}, "cpu", 8),
        ([], {}, "cuda", 8),
    ],
)
def test_what_leaves_nothing_to_the_rule(
    overrides: list[str],
    environment: dict[str, str],
    device: str,
    count: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert threads(*overrides, model=SMALL, device=device) == count


def test_ranks_agree_where_one_has_the_variable() -> None:
    assert "OMP_NUM_THREADS" not in os.environ
    assert threads(model=SMALL, ranks=Two(True)) == 8


@pytest.mark.slow
def test_a_run_says_how_many_also_when_resumed_and_gives_them_back(tmp_path: Path) -> None:
    tiny = ["clients.count=4", "clients.per_round=2", "local.epochs=1", "data.subset=300"]
    quiet = ["tracking.wandb.mode=disabled", "tracking.progress=false", "measure.personal=null"]
    run = [*tiny, *quiet, "engine.device=cpu"]
    fedexp.run([*run, "rounds=1", f"hydra.run.dir={tmp_path}"])
    assert json.loads((tmp_path / "summary.json").read_text())["threads"] == 1
    assert torch.get_num_threads() == 8
    resumed = fedexp.run([*run, "rounds=2", f"resume={tmp_path}"])
    assert resumed.summary["threads"] == 1
