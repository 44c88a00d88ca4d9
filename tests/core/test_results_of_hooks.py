"""A wrong result of a hook is one line that names the part, the hook and what was expected."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from support.federations import federate
from torch import Tensor

from fedexp.core.part import Part
from fedexp.core.results import WrongResultError, clients, described, named, numbers
from fedexp.core.sockets import Loss
from fedexp.losses.cross_entropy import CrossEntropy
from fedexp.measures.round_results import Measured
from fedexp.runtime.federation import Federation

SMALL = ("clients.count=4", "clients.per_round=2", "data.subset=120", "local.epochs=1")
SMALL += ("measure.personal=null", "model=mlp", "sampler=power_of_choice")
WEIGHT = "head.linear.weight"


@pytest.fixture(scope="module", params=["serial", "vectorized"])
def federation(request: pytest.FixtureRequest) -> Federation:
    return federate(*SMALL, f"engine={request.param}")


def _without(found: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: value for name, value in found.items() if name != WEIGHT}


def _all(change: Callable[[Tensor], Any]) -> Callable[..., Any]:
    """A ``merge`` or ``correct`` that changes every current weight."""
    return lambda self, current, *others: {name: change(w) for name, w in current.items()}


WRONG: list[tuple[str, str, Callable[..., Any], str]] = [
    ("aggregator", "merge", lambda *_: None, "returned None; it must return a dict"),
    ("aggregator", "merge", lambda s, w: _without(w), rf"left out {WEIGHT}; .* all 6 weights"),
    ("aggregator", "merge", _all(lambda w: w[:1]), r"returned a float32 tensor \[1.* must be"),
    ("aggregator", "merge", _all(lambda w: w.sum()), r"returned a float32 tensor \[\] on cpu as"),
    ("aggregator", "merge", _all(lambda w: w.double()), "returned a float64 tensor .* a float32"),
    ("aggregator", "merge", _all(lambda w: w.to("meta")), "on meta as .* must be .* on cpu"),
    ("aggregator", "merge", _all(lambda w: 0.5), "returned a float as"),
    ("regularizer", "correct", lambda *_: {}, "left out"),
    ("regularizer", "correct", lambda *_: None, "returned None"),
    ("loss", "broadcast", lambda *_: None, "returned None"),
    ("loss", "broadcast", lambda *_: {"n": 3}, "returned an int as n; it must be a tensor"),
    ("loss", "forward", lambda *_: None, "returned None; it must return a scalar tensor"),
    ("loss", "forward", lambda *_: 0.5, "returned a float; it must return a scalar tensor"),
    ("loss", "forward", lambda s, batch: batch.z.sum(dim=1), r"returned a float32 tensor \["),
    ("loss", "measure", lambda *_: None, "returned None; it must return a dict"),
    ("loss", "report", lambda *_: [1.0], "returned a list with a float"),
    ("loss", "upload", lambda s, c, weights, m: _without(weights), f"left out {WEIGHT}"),
    ("loss", "extract", lambda *_: {1: torch.ones(1)}, "named a tensor 1"),
    ("loss", "metrics", lambda *_: {"own/x": torch.ones(())}, "tensor .* it must be a number"),
    ("regularizer", "forward", lambda *_: None, "a number or a scalar tensor"),
    ("regularizer", "unclipped_gradient", lambda *_: None, "returned None"),
    (
        "regularizer",
        "unclipped_gradient",
        lambda *_: {"head.bias": torch.ones(())},
        "returned head.bias, which is no trained parameter",
    ),
    ("personalization", "term", lambda *_: torch.ones(2), r"tensor \[2\]"),
    ("personalization", "apply_head", lambda *_: None, "returned None; it must return a tensor"),
    ("personalization", "apply_head", lambda s, h, z: h(z)[:1], r"returned a float32 tensor \["),
    ("personalization", "personal_weights", lambda *_: {"x": torch.ones(1)}, "returned x, which"),
    ("sampler", "candidates", lambda *_: [9], "returned client 9, which is not there"),
    ("sampler", "candidates", lambda *_: None, "returned None; it must return a list of client"),
    ("sampler", "answer", lambda *_: 0.5, "returned a float"),
    ("sampler", "select", lambda *_: None, "returned None"),
    ("sampler", "select", lambda *_: [0.0], "returned a list with a float"),
    ("sampler", "select", lambda *_: [-1], "returned client -1"),
    ("sampler", "select", lambda *_: [0, 1, 2], "returned 3 clients; it must return at most 2"),
    ("sampler", "select", lambda *_: [1, 1], "returned client 1 twice; .* DRAWS_REPEATEDLY"),
]


@pytest.mark.parametrize(("socket", "hook", "result", "problem"), WRONG)
def test_a_wrong_result_is_one_line(
    socket: str,
    hook: str,
    result: Callable[..., Any],
    problem: str,
    federation: Federation,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    part: Part = federation.engine.resources.parts[socket]
    monkeypatch.setattr(type(part), hook, result)
    call = hook if hook == "metrics" else rf"{hook}\(\.\.\."
    with pytest.raises(WrongResultError, match=rf"^{socket} \(fedexp.*{call}.*{problem}") as error:
        federation.run_round(1)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("regularizer", ["none", "proximal"])
def test_a_loss_without_a_gradient_is_one_line(
    regularizer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    federation = federate(*SMALL, "engine=serial", f"regularizer={regularizer}")
    monkeypatch.setattr(CrossEntropy, "forward", lambda self, batch: batch.logits.mean().detach())
    with pytest.raises(WrongResultError, match=r"^loss \(.*forward\(\.\.\.\) .*without a gradient"):
        federation.run_round(1)


@pytest.mark.parametrize(
    ("result", "problem"),
    [
        (None, "returned None; it must return a Measured"),
        (Measured({"own/x": None}), "returned None as own/x; it must be a number"),
        (Measured(tables={"own": {"a": [1], "b": []}}), "a has 1, b has 0"),
        (Measured(figures={"own": 1}), "returned an int as the figure own"),
    ],
)
def test_a_wrong_result_of_a_measure_is_one_line(
    result: Any, problem: str, federation: Federation, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(type(federation.measures["cost"]), "__call__", lambda *_: result)
    with pytest.raises(WrongResultError, match=rf"^measure\.cost \(fedexp.*{problem}"):
        federation.run_round(1)


@pytest.mark.parametrize(
    ("hook", "result", "problem"),
    [
        ("corrupt", lambda self, update, message: None, "returned None; it must return an Update"),
        ("corrupt", lambda self, update, message: replace(update, weights={}), "left out"),
        ("collude", lambda self, updates, message: [None for _ in updates], "returned None"),
        ("data", lambda *_: None, "it must return a ClientData"),
    ],
)
def test_a_wrong_result_of_faults_is_one_line(
    hook: str,
    result: Callable[..., Any],
    problem: str,
    federation: Federation,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(type(federation.engine.resources.faults), hook, result)
    with pytest.raises(WrongResultError, match=rf"^faults \(.*{hook}.*{problem}"):
        federation.run_round(1)


@pytest.mark.parametrize("result", [lambda z: None, lambda z: z[:, :9], lambda z: z.sum()])
def test_the_logits_are_checked_before_training(
    result: Callable[[Tensor], Any], federation: Federation, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(type(federation.module.head), "forward", lambda self, z: result(z))
    with pytest.raises(
        WrongResultError, match=r"^head \(.*forward.* must be a .* \[2, 10\] on cpu"
    ):
        federate(*SMALL)


def test_a_wrong_gradient_is_one_line(
    federation: Federation, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = federation.module
    own = {"head.bias": torch.ones(2)}
    for result, problem in ((None, "returned None"), ({"x": own}, "as x"), (own, "no trained")):
        monkeypatch.setattr(type(module.gradient), "forward", lambda *_, found=result: found)
        with pytest.raises(WrongResultError, match=rf"^gradient \(fedexp.*forward.*{problem}"):
            module.step_gradient({}, {}, lambda parameters, part=0, parts=1: {})


def test_right_results_pass() -> None:
    assert clients(np.array([2, 0]), np.array([0, 2, 5]), "sampler", Loss, "select(...)") == [2, 0]
    assert numbers({"a": np.float32(0.5)}, "loss", Loss, "metrics()") == {"a": 0.5}
    assert named("loss", CrossEntropy) == named("loss", CrossEntropy())
    assert described([1, None]) == "a list with None"
