"""Two rounds of each server optimizer by hand, so that the state carried over is checked too."""

import math
from typing import Any

import pytest
import torch

from fedexp.aggregators.average import Average
from fedexp.aggregators.server_optimizer import Adagrad, Adam, Momentum, ServerOptimizer, Yogi
from fedexp.core.messages import Tensors, Update
from fedexp.core.part import Clients, Model, Setting

LR, BETA1, BETA2, TAU = 0.5, 0.9, 0.99, 0.1
OPTIONS: dict[type[ServerOptimizer], tuple[float, ...]] = {
    Momentum: (LR, BETA1),
    Adagrad: (LR, BETA1, TAU),
    Adam: (LR, BETA1, BETA2, TAU),
    Yogi: (LR, BETA1, BETA2, TAU),
}


def prepared(aggregator: ServerOptimizer) -> ServerOptimizer:
    shapes = {"w": torch.Size([1])}
    clients = Clients.of(torch.ones(2, 2, dtype=torch.int64))
    aggregator.setup(Setting(0, 2, 2, 2, 2, 2, clients, Model(shapes)))
    return aggregator


def round_of(
    aggregator: Average, current: Tensors, target: float, accepted: bool = True
) -> Tensors:
    """The cohort's average is ``target`` for the parameter and for the buffer."""
    for client, offset in enumerate((-1.0, 1.0)):
        value = torch.tensor([target + offset], dtype=torch.float64)
        aggregator.add(Update(client, 1, {"w": value, "running_mean": value.clone()}), current)
    merged = aggregator.merge(current)
    if accepted:
        aggregator.commit()
    return merged


def two_rounds(aggregator: ServerOptimizer) -> list[Tensors]:
    start = {"w": torch.zeros(1, dtype=torch.float64)}
    start["running_mean"] = start["w"].clone()
    first = round_of(prepared(aggregator), start, 1.0)
    return [first, round_of(aggregator, first, 2.0)]


def test_momentum() -> None:
    first, second = two_rounds(Momentum("samples", LR, BETA1))
    # delta_1 = 1, m_1 = 1, w_1 = 0.5; delta_2 = 1.5, m_2 = 0.9 + 1.5, w_2 = 0.5 + 0.5 * 2.4
    assert first["w"].item() == pytest.approx(0.5)
    assert second["w"].item() == pytest.approx(1.7)


def test_momentum_without_memory_and_with_lr_one_is_plain_averaging() -> None:
    first, second = two_rounds(Momentum("samples", 1.0, 0.0))
    assert (first["w"].item(), second["w"].item()) == (1.0, 2.0)


def adaptive_by_hand(kind: str) -> list[float]:
    w, m, v, results = 0.0, 0.0, TAU**2, []
    for target in (1.0, 2.0):
        delta = target - w
        m = BETA1 * m + (1 - BETA1) * delta
        if kind == "adam":
            v = BETA2 * v + (1 - BETA2) * delta**2
        else:
            v = v - (1 - BETA2) * delta**2 * math.copysign(1, v - delta**2)
        w = w + LR * m / (math.sqrt(v) + TAU)
        results.append(w)
    return results


@pytest.mark.parametrize(("kind", "cls"), [("adam", Adam), ("yogi", Yogi)])
def test_adaptive(kind: str, cls: type[Any]) -> None:
    results = two_rounds(cls("samples", LR, BETA1, BETA2, TAU))
    assert [each["w"].item() for each in results] == pytest.approx(adaptive_by_hand(kind))


@pytest.mark.parametrize("beta1", [0.0, 0.9])
def test_adagrad_sums_the_squares_of_all_rounds(beta1: float) -> None:
    first, second = two_rounds(Adagrad("samples", LR, beta1, TAU))
    # Round 1: delta = 1, m = 1 - beta1, v = tau^2 + 1.
    w = LR * (1 - beta1) / (math.sqrt(0.01 + 1) + 0.1)
    assert first["w"].item() == pytest.approx(w)
    # Round 2: the average is 2, so delta = 2 - w; v adds its square.
    delta = 2 - w
    m = beta1 * (1 - beta1) + (1 - beta1) * delta
    w += LR * m / (math.sqrt(0.01 + 1 + delta**2) + 0.1)
    assert second["w"].item() == pytest.approx(w)


@pytest.mark.parametrize("cls", [Adagrad, Adam, Yogi])
def test_buffers_are_only_averaged(cls: type[Any]) -> None:
    results = two_rounds(cls("samples", *OPTIONS[cls]))
    assert [each["running_mean"].item() for each in results] == [1.0, 2.0]


@pytest.mark.parametrize("cls", [Momentum, Adagrad, Adam, Yogi])
def test_the_state_is_kept_over_a_restart(cls: type[Any]) -> None:
    options = OPTIONS[cls]
    aggregator = cls("samples", *options)
    first, second = two_rounds(aggregator)
    stopped = prepared(cls("samples", *options))
    round_of(stopped, {name: torch.zeros_like(value) for name, value in first.items()}, 1.0)
    resumed = prepared(cls("samples", *options))
    resumed.load_server_state(stopped.server_state())
    assert round_of(resumed, first, 2.0)["w"] == second["w"]


@pytest.mark.parametrize("cls", [Momentum, Adagrad, Adam, Yogi])
def test_a_result_that_is_not_finite_leaves_the_moments(cls: type[Any]) -> None:
    options = OPTIONS[cls]
    aggregator = prepared(cls("samples", *options))
    start = {"w": torch.zeros(1, dtype=torch.float64), "running_mean": torch.zeros(1).double()}
    first = round_of(aggregator, start, 1.0)
    before = {kind: dict(moments) for kind, moments in aggregator.server_state().items()}
    # Adaptive moments are squares: 1e200 overflows them, though the step m / sqrt(v) would be 0.
    target = math.inf if cls is Momentum else 1e200
    assert not round_of(aggregator, first, target, accepted=False)["w"].isfinite()
    assert aggregator.server_state() == before
    expected = two_rounds(cls("samples", *options))[1]
    assert torch.equal(round_of(aggregator, first, 2.0)["w"], expected["w"])
