import math
from collections.abc import Iterator, Mapping
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from support.federations import federate

from fedexp.core.messages import Message, Tensors, Update
from fedexp.core.part import Model
from fedexp.measures.step_cosine import StepCosine

START = {
    "a": torch.tensor([[1.0, -2.0], [0.5, 3.0]]),
    "b": torch.tensor([4.0]),
    "running_mean": torch.tensor([1e6, -1e6]),
    "private": torch.tensor([9.0]),
}
MERGED = {"a": torch.tensor([[2.0, -1.0], [0.0, 3.0]]), "b": torch.tensor([4.5])}
MERGED["running_mean"] = torch.zeros(2)


def drawn(seed: int) -> Tensors:
    draw = torch.Generator().manual_seed(seed)
    return {name: torch.randn(value.shape, generator=draw) for name, value in START.items()}


def moved(client: int, directions: dict[str, Tensors] | None = None, scale: float = 1.0) -> Update:
    weights = {name: START[name] + scale * step for name, step in drawn(client).items()}
    return Update(client, client + 1, weights, directions=directions or {})


def aligned(
    updates: list[Update], merged: Tensors = MERGED, parameters: tuple[str, ...] = ("a", "b")
) -> Mapping[str, float]:
    """The metrics of a round with these updates; ``private`` is a parameter that is not shared."""
    measure = StepCosine()
    names: Any = dict.fromkeys([*parameters, "private"])
    setting: Any = SimpleNamespace(model=Model(names, frozenset({*parameters, "running_mean"})))
    resources: Any = None
    measure.setup(setting, resources)
    measure.begin_round(Message(1, START))
    for update in updates:
        measure.observe(update)
    own = measure.contribution()
    measure.set_reduced(own.sums, [own.items])
    after: Any = SimpleNamespace(message=Message(1, merged))
    return measure(after).metrics


def cosine(u: list[float], v: list[float]) -> float:
    return float(np.dot(u, v) / math.sqrt(np.dot(u, u) * np.dot(v, v)))


def vector(step: Tensors) -> list[float]:
    return [float(x) for name in ("a", "b") for x in step[name].double().flatten()]


def test_mean_cosines_by_a_loop_over_clients() -> None:
    directions: list[dict[str, Tensors]] = [{"projected": drawn(7)}, {}, {"projected": drawn(8)}]
    updates = [moved(client, directions[client]) for client in range(3)]
    step = vector({name: MERGED[name] - START[name] for name in ("a", "b")})
    own = [vector({n: u.weights[n] - START[n] for n in ("a", "b")}) for u in updates]
    assert aligned(updates) == pytest.approx(
        {
            "geometry/local_step_cosine": sum(cosine(u, step) for u in own) / 3,
            # over the two clients that noted it
            "geometry/projected_step_cosine": sum(cosine(vector(drawn(s)), step) for s in (7, 8))
            / 2,
        },
        abs=1e-6,
    )
    assert aligned(updates[::-1]) == pytest.approx(aligned(updates), abs=1e-12)


def test_a_step_counts_by_its_direction_not_its_length() -> None:
    assert aligned([moved(0), moved(1)]) == pytest.approx(
        aligned([moved(0, scale=1000), moved(1)]), abs=1e-4
    )


def test_a_parameter_missing_from_a_direction_counts_as_zero() -> None:
    step = {"b": torch.tensor([2.0])}
    found = aligned([moved(0, {"head": step})])
    whole = vector({name: MERGED[name] - START[name] for name in ("a", "b")})
    assert found["geometry/head_step_cosine"] == pytest.approx(cosine([0, 0, 0, 0, 2], whole))


@pytest.mark.parametrize("bad", [0.0, math.nan, math.inf])
def test_steps_that_are_zero_or_not_finite_are_left_out(bad: float) -> None:
    broken = moved(1, scale=bad)
    assert aligned([moved(0), broken]) == aligned([moved(0)])
    assert aligned([broken]) == {}
    assert aligned([]) == {}
    assert aligned([moved(0)], merged=START) == {}


def test_without_shared_parameters_there_is_nothing_to_compare() -> None:
    update = Update(0, 1, {}, directions={"d": drawn(0)})
    assert aligned([update], {}, parameters=()) == {}


TINY = ["clients.count=4", "local.epochs=1", "data.subset=100", "measure.personal=null"]


def test_a_round_reports_the_mean_cosine_of_its_clients() -> None:
    federation = federate(*TINY, "clients.per_round=3", "+measure=step_cosine")
    before = {name: w.clone() for name, w in federation.server.weights.items()}
    seen: list[Update] = []
    train = federation.engine.train

    def listen(cohort: list[int], message: Message) -> Iterator[Update]:
        for update in train(cohort, message):
            seen.append(update)
            yield update

    federation.engine.train = listen  # type: ignore[method-assign,assignment]
    metrics = federation.run_round(1).metrics
    after = federation.server.weights

    def step(weights: Tensors) -> list[float]:
        return [
            float(x) for name in before for x in (weights[name] - before[name]).double().flatten()
        ]

    cosines = [cosine(step(update.weights), step(after)) for update in seen]
    assert len(cosines) == 3
    assert metrics["geometry/local_step_cosine"] == pytest.approx(sum(cosines) / 3, abs=1e-6)
    assert 0.1 < metrics["geometry/local_step_cosine"] < 0.99


def test_one_client_alone_is_the_global_step() -> None:
    federation = federate(*TINY, "clients.per_round=1", "+measure=step_cosine")
    metrics = federation.run_round(1).metrics
    assert metrics["geometry/local_step_cosine"] == pytest.approx(1, abs=1e-9)


def test_off_measures_nothing() -> None:
    federation = federate(*TINY, "clients.per_round=1")
    assert not any("step_cosine" in name for name in federation.run_round(1).metrics)
    assert federation.measures.contribution().sums == {}
