from collections.abc import Sequence
from functools import partial
from typing import Any

import pytest
import torch
from support.federations import compose
from torch import nn

from fedexp.contract import Forward, Loss
from fedexp.engines.serial import Serial
from fedexp.engines.vectorized import Vectorized
from fedexp.runtime.plan import Plan, plan

EIGHT = ["algorithm=fedavg", "clients.per_round=8"]


class OwnLoss(Loss):
    """A loss of a user."""

    def forward(self, batch: Forward) -> torch.Tensor:
        """The mean logit."""
        return batch.logits.mean()


def own_model(input_shape: Sequence[int]) -> nn.Module:
    """A network of PyTorch's layers, built by a function of a user."""
    return nn.Sequential(nn.Flatten(), nn.Dropout(0.0), nn.Linear(64, 8))


def dropout_model(input_shape: Sequence[int]) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Dropout(0.5), nn.Linear(64, 8))


def planned(*overrides: str) -> Plan:
    return plan(compose(*EIGHT, "engine.device=cpu", *overrides))


def custom(function: Any) -> list[str]:
    return ["model=custom", f"model._target_={__name__}.{function.__name__}"]


ADAFACTOR = [
    "optimizer._target_=torch.optim.Adafactor",
    "~optimizer.momentum",
    "~optimizer.nesterov",
]
STACKED: list[list[str]] = [
    [],
    ["algorithm=fednh"],
    custom(own_model),
    ["system=lognormal", "system.invite=10"],
    ["engine.devices=2", "clients.per_round=15"],
]
ALONE: list[tuple[list[str], str]] = [
    (["clients.per_round=7"], "fewer than 8 clients train at once"),
    (
        ["system=lognormal", "clients.per_round=7", "system.invite=8"],
        "fewer than 8 clients train at once",
    ),
    (["engine.devices=2", "clients.per_round=14"], "fewer than 8 clients train at once"),
    (
        ["model.batch_norm=true"],
        "backbone.1.1 is a BatchNorm layer with running statistics",
    ),
    (ADAFACTOR, "nothing updates each element by itself"),
    (
        [f"loss._target_={__name__}.OwnLoss"],
        "loss (OwnLoss) is not known to allow stacks; check_part tests it",
    ),
    (
        custom(dropout_model),
        "backbone.1 is a dropout layer, which draws other random numbers in a stack",
    ),
    (["engine.compile=true"], "a stack would be compiled anew for each number of clients"),
    (["model.hidden=[512,256]"], "a step has 5.77 MFLOP, more than 4"),
]


@pytest.mark.parametrize("overrides", STACKED, ids=str)
def test_many_small_clients_are_stacked(overrides: list[str]) -> None:
    found = planned(*overrides)
    assert found.engine.func is Vectorized
    assert found.engine.keywords == {"clients_per_chunk": None}
    assert found.why_engine == "vectorized, because 8 small clients train at once"


@pytest.mark.parametrize(("overrides", "reason"), ALONE, ids=str)
def test_the_others_train_one_after_another(overrides: list[str], reason: str) -> None:
    found = planned(*overrides)
    assert found.engine.func is Serial
    assert found.why_engine == f"serial, because {reason}"


@pytest.mark.parametrize("device", ["auto", "cuda"])
def test_on_a_gpu_three_clients_of_any_size_are_stacked(
    device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def with_three(device: str) -> str:
        words = ["clients.per_round=3", "model.hidden=[512,256]", f"engine.device={device}"]
        return plan(compose("algorithm=fedavg", *words)).why_engine

    assert with_three(device) == "serial, because fewer than 8 clients train at once"
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert with_three(device) == "vectorized, because 3 clients train at once"
    assert with_three("cpu") == "serial, because fewer than 8 clients train at once"


def test_a_chosen_engine_stays() -> None:
    found = planned("engine=serial")
    assert (found.engine.func, found.why_engine) == (Serial, "")
    assert isinstance(planned("engine=vectorized").engine, partial)
