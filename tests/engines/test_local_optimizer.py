"""The local optimizer: torch's own, its learning rate in every round, and what is refused."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from support.federations import compose, federate
from torch import nn

from fedexp.engines.local_optimizer import LocalOptimizer, is_elementwise
from fedexp.errors import InputError

CONF = Path(__file__).parents[2] / "conf"
SGD = {"_target_": "torch.optim.SGD", "lr": 0.1}
CONSTANT = yaml.safe_load((CONF / "schedule" / "constant.yaml").read_text())


SMALL = ["clients.count=4", "clients.per_round=2", "data.subset=200", "local.epochs=1"]


def schedule(name: str, **arguments: Any) -> dict[str, Any]:
    return {"_target_": f"torch.optim.lr_scheduler.{name}", **arguments}


def local(
    optimizer: dict[str, Any] = SGD,
    schedule: dict[str, Any] = CONSTANT,
    round_decay: float = 1.0,
    rounds: int = 5,
) -> LocalOptimizer:
    return LocalOptimizer(optimizer, schedule, round_decay, rounds)


def rates(made: LocalOptimizer, rounds: int) -> list[float]:
    """What a fresh optimizer of each round has, not what the factory says."""
    parameters = [nn.Parameter(torch.zeros(1))]
    return [made(parameters, round).param_groups[0]["lr"] for round in range(1, rounds + 1)]


def test_round_decay_to_the_bit() -> None:
    expected = [0.1 * 0.99 ** (round - 1) for round in range(1, 201)]
    assert rates(local(round_decay=0.99, rounds=200), 200) == expected


def test_a_constant_schedule_changes_nothing() -> None:
    assert rates(local(rounds=30), 30) == [0.1] * 30


@pytest.mark.parametrize(
    ("chosen", "expected"),
    [
        (schedule("ExponentialLR", gamma=0.5), [0.1, 0.05, 0.025, 0.0125, 0.00625]),
        (schedule("StepLR", step_size=2, gamma=0.1), [0.1, 0.1, 0.01, 0.01, 0.001]),
        (
            schedule("CosineAnnealingLR", T_max=5, eta_min=0.02),
            [0.02 + 0.08 * (1 + math.cos(math.pi * t / 5)) / 2 for t in range(5)],
        ),
        (
            schedule("LinearLR", start_factor=0.2, end_factor=1.0, total_iters=2),
            [0.02, 0.06, 0.1, 0.1, 0.1],
        ),
        (schedule("MultiStepLR", milestones=[1, 3], gamma=0.5), [0.1, 0.05, 0.05, 0.025, 0.025]),
    ],
)
def test_schedules_by_hand(chosen: dict[str, Any], expected: list[float]) -> None:
    assert rates(local(schedule=chosen), 5) == pytest.approx(expected, rel=1e-12)


def test_round_decay_multiplies_the_schedule() -> None:
    made = local(schedule=schedule("StepLR", step_size=1, gamma=0.5), round_decay=0.9)
    assert rates(made, 3) == pytest.approx([0.1, 0.05 * 0.9, 0.025 * 0.81])


def test_rounds_after_the_last_keep_its_scheduled_rate() -> None:
    made = local(schedule=schedule("ExponentialLR", gamma=0.5), rounds=2)
    assert rates(made, 4) == [0.1, 0.05, 0.05, 0.05]


@pytest.mark.parametrize("name", sorted(path.stem for path in (CONF / "optimizer").glob("*.yaml")))
def test_every_option_minimizes(name: str) -> None:
    node = compose(f"optimizer={name}").optimizer.node
    made = local(node)
    weight = nn.Parameter(torch.tensor([1.0]))
    optimizer = made([weight], 1)
    for _ in range(10):
        optimizer.zero_grad()
        weight.square().sum().backward()
        optimizer.step()
    assert abs(weight.item()) < 0.995


@pytest.mark.parametrize("name", ["Adagrad", "Adafactor", "NAdam", "Rprop", "ASGD", "Adadelta"])
def test_any_class_of_torch_optim(name: str) -> None:
    made = local({"_target_": f"torch.optim.{name}", "lr": 0.01})
    optimizer = made([nn.Parameter(torch.zeros(1))], 1)
    assert type(optimizer) is getattr(torch.optim, name)


def test_fused_kernels_unless_the_config_says_otherwise() -> None:
    parameters = [nn.Parameter(torch.zeros(1))]
    assert local()(parameters, 1).param_groups[0]["fused"] is True
    assert local(SGD | {"fused": False})(parameters, 1).param_groups[0]["fused"] is False
    assert local(SGD | {"foreach": True})(parameters, 1).param_groups[0]["fused"] is None


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"lr": -1}, "optimizer.lr=-1: should be greater than 0"),
        ({"lr": "fast"}, "optimizer.lr=fast: should be a valid number"),
        ({"weight_decay": math.nan}, "optimizer.weight_decay=nan: should be a finite number"),
        ({"momentm": 0.9}, "optimizer.momentm: unknown key; there are dampening, "),
        ({"_target_": "torch.optim.LBFGS"}, "optimizer: LBFGS.step() missing"),
        ({"_target_": "torch.optim.SparseAdam"}, "optimizer: SparseAdam does not support dense"),
        ({"_target_": "torch.optim.Sgd"}, "optimizer._target_=torch.optim.Sgd: cannot be imported"),
        ({"_target_": "torch.optim.Adam", "betas": [0.9]}, "optimizer.betas.1: is missing"),
    ],
)
def test_wrong_optimizers(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError) as caught:
        local(SGD | changes)
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("chosen", "message"),
    [
        (schedule("StepLR", step_size=0), "schedule.step_size=0: should be greater than 0"),
        (schedule("StepLR", steps=3), "schedule.steps: unknown key; there are gamma, "),
        (schedule("ReduceLROnPlateau"), "schedule: ReduceLROnPlateau.step() missing"),
        (
            schedule("CosineAnnealingLR", T_max=2),
            "schedule: the learning rate of round 3 is 0, not positive",
        ),
        (
            schedule("OneCycleLR", max_lr=1.0, total_steps=5),
            "schedule: changes momentum; only the learning rate may change",
        ),
        (schedule("Nothing"), "schedule._target_=torch.optim.lr_scheduler.Nothing: cannot be"),
    ],
)
def test_wrong_schedules(chosen: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError) as caught:
        local(SGD | {"momentum": 0.9}, schedule=chosen)
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "expected"),
    [("SGD", True), ("AdamW", True), ("RMSprop", True), ("Rprop", True), ("Adafactor", False)],
)
def test_which_optimizers_can_be_stacked(name: str, expected: bool) -> None:
    assert is_elementwise(local({"_target_": f"torch.optim.{name}", "lr": 0.1})) == expected


def test_clients_train_at_the_scheduled_rate() -> None:
    federation = federate(
        *SMALL, "rounds=4", "schedule=cosine", "optimizer.lr=0.1", "optimizer.round_decay=0.5"
    )
    cosine = [0.1, 0.0853553391, 0.05, 0.0146446609]  # 0.05 (1 + cos(pi (t - 1) / 4))
    for round, rate in enumerate(cosine, start=1):
        (*_,) = federation.engine.train([0], federation.server.broadcast(round))
        found = federation.module.learning_rate
        assert found == pytest.approx(rate * 0.5 ** (round - 1), rel=1e-6)


@pytest.mark.parametrize("optimizer", ["adamw", "rmsprop"])
def test_engines_agree(optimizer: str) -> None:
    """The rate is small, because these divide by tiny gradients, which magnifies rounding."""
    options = [*SMALL, f"optimizer={optimizer}", "optimizer.lr=1e-4", "schedule=warm_up"]
    serial, vectorized = federate(*options), federate(*options, "engine=vectorized")
    for round in (1, 2):
        for federation in (serial, vectorized):
            federation.run_round(round)
    for name, value in serial.server.weights.items():
        torch.testing.assert_close(vectorized.server.weights[name], value, rtol=1e-3, atol=1e-5)


def test_vectorized_refuses_what_it_cannot_stack() -> None:
    adafactor = [
        "optimizer._target_=torch.optim.Adafactor",
        *("~optimizer.momentum", "~optimizer.nesterov"),
    ]
    with pytest.raises(InputError, match=r"^optimizer: engine=vectorized needs one that updates"):
        federate(*SMALL, *adafactor, "engine=vectorized")
    assert federate(*SMALL, *adafactor).run_round(1).metrics["train/loss"] > 0
