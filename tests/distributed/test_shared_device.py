"""Several processes on one GPU: who gets which device, and what connects them."""

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from lightning.fabric import Fabric
from lightning.fabric.strategies.ddp import DDPStrategy
from support.federations import compose

from fedexp.distributed.fabric import RENDEZVOUS, make_fabric
from fedexp.distributed.processes import _variables
from fedexp.errors import InputError


@pytest.fixture
def two_gpus(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A machine that says it has two GPUs; no process is connected."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(Fabric, "launch", lambda self: None)
    yield
    logging.getLogger("fedexp").setLevel(logging.NOTSET)  # only the first rank keeps this level


def as_rank(rank: int, size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Set the variables of a rank, except the place where it would meet the others."""
    for name, value in _variables(rank, size, Path()).items():
        if name != RENDEZVOUS:
            monkeypatch.setenv(name, value)


@pytest.mark.parametrize("rank", range(6))
def test_ranks_share_the_gpus_in_order(
    rank: int, two_gpus: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    as_rank(rank, 6, monkeypatch)
    config = compose("engine.devices=2", "engine.processes_per_device=3").engine
    assert config.processes == 6
    fabric = make_fabric(config)
    assert fabric.device == torch.device("cuda", rank // 3)
    strategy = fabric.strategy
    assert isinstance(strategy, DDPStrategy)
    assert strategy.num_processes == 6
    assert strategy.process_group_backend == "gloo"


def test_alone_on_its_gpu_a_rank_has_the_usual_backend(
    two_gpus: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    as_rank(1, 2, monkeypatch)
    fabric = make_fabric(compose("engine.device=cuda", "engine.devices=2").engine)
    assert fabric.device == torch.device("cuda", 1)
    assert isinstance(fabric.strategy, DDPStrategy)
    assert fabric.strategy.process_group_backend is None  # NCCL for CUDA


def test_too_few_gpus_are_one_line(two_gpus: None) -> None:
    config = compose("engine.device=cuda", "engine.devices=3", "engine.processes_per_device=2")
    with pytest.raises(InputError, match=r"engine\.devices=3: not on this machine"):
        make_fabric(config.engine)


def test_a_cpu_is_refused(two_gpus: None) -> None:
    config = compose("engine.device=cpu", "engine.processes_per_device=4").engine
    with pytest.raises(InputError, match=r"engine\.processes_per_device=4: is for CUDA GPUs"):
        make_fabric(config)


def test_without_a_gpu_it_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(InputError, match=r"engine\.processes_per_device=2: is for CUDA GPUs"):
        make_fabric(compose("engine.processes_per_device=2").engine)
