"""Trials before the first round: what they find out, and that they leave nothing behind."""

import time
from typing import Any

import pytest
import torch
from federations import federate

from fedexp.engines import trial
from fedexp.engines.base import Engine
from fedexp.engines.serial import Serial
from fedexp.engines.threads import fewest_worthwhile, restored_threads, seconds_by_threads
from fedexp.engines.trial import measure, train_once, trial_resources, typical_clients
from fedexp.tracking.summary import digest

SMALL = ["clients.count=6", "clients.per_round=3", "local.epochs=2", "data.subset=300"]


@pytest.mark.parametrize(
    ("seconds", "best"),
    [
        ({1: 1.0, 2: 1.0, 4: 1.0}, 1),  # no gain
        ({1: 1.0, 2: 0.9, 4: 0.88}, 1),  # too little
        ({1: 1.0, 2: 0.6, 4: 0.55}, 2),  # 0.6 / 0.55 < 1.15
        ({1: 1.0, 2: 0.6, 4: 0.4}, 4),
        ({1: 1.0, 2: 9.0}, 1),  # a core of the two is taken
    ],
)
def test_more_threads_have_to_be_worth_it(seconds: dict[int, float], best: int) -> None:
    assert fewest_worthwhile(seconds) == best


def test_ways_are_measured_in_turns_after_a_warm_up(monkeypatch: pytest.MonkeyPatch) -> None:
    now, calls = [0.0], []
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])

    def way(name: str, *seconds: float) -> Any:
        each = iter(seconds)

        def call() -> None:
            calls.append(name)
            now[0] += next(each)

        return call

    # 0.96 s after two turns, so that the third is the last.
    found = measure({"a": way("a", 0.5, 0.01, 0.03), "b": way("b", 0.25, 0.2, 0.3)})
    assert calls == ["a", "b"] * 3
    assert found == pytest.approx({"a": 0.02, "b": 0.25})


def test_a_slow_trial_is_one_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trial, "_SECONDS", 0.0)
    calls: list[int] = []
    assert measure({1: lambda: calls.append(1), 2: lambda: calls.append(2)}).keys() == {1, 2}
    assert calls == [1, 2]


def test_typical_clients_are_spread_over_the_sizes() -> None:
    federation = federate("partition=dirichlet", "clients.count=9", "clients.per_round=3")
    resources = federation.engine.resources
    sizes = resources.data.class_counts.sum(dim=1)
    order = sizes.argsort(stable=True).tolist()
    assert typical_clients(resources, 1) == [order[4]]  # the median
    assert typical_clients(resources, 3) == [order[1], order[4], order[7]]
    assert sorted(typical_clients(resources, 100)) == list(range(9))


def state_of(engine: Engine) -> Any:
    return [
        (client, {name: sorted(memory) for name, memory in state.memories.items()})
        for client, state in engine.resources.store.states()
    ]


@pytest.mark.parametrize(
    "method",
    [
        ["algorithm=scaffold"],
        ["algorithm=ditto"],
        ["algorithm=moon", "engine=vectorized"],
        ["algorithm=fedsc", "local.keep_optimizer=true"],
        ["faults=unreliable", "faults.nan=0.5"],
    ],
    ids=" ".join,
)
def test_a_trial_changes_no_bit_of_the_run(
    method: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trial, "_SECONDS", 0.0)
    alone, after = federate(*SMALL, *method), federate(*SMALL, *method)
    before = torch.get_rng_state()
    seconds_by_threads(after.engine, after.server.broadcast(1), most=2)
    assert torch.equal(torch.get_rng_state(), before)
    assert not state_of(after.engine)
    for round in (1, 2):
        rows = [f.run_round(round).metrics for f in (alone, after)]
        rows = [{k: v for k, v in row.items() if not k.startswith("time/")} for row in rows]
        assert rows[0] == rows[1]
    assert digest(after.server.weights) == digest(alone.server.weights)
    assert state_of(after.engine) == state_of(alone.engine)


def test_a_trial_is_one_epoch_of_a_few_batches() -> None:
    federation = federate(*SMALL, "local.batch_size=5", "algorithm=scaffold")
    client = typical_clients(federation.engine.resources, 1)
    with trial_resources(federation.engine.resources, client) as resources:
        engine = federation.engine.on_trial(resources)
        train_once(engine, client, federation.server.broadcast(1))
        assert resources.module.steps == trial._BATCHES
        assert resources.store.clients_with_state == client  # those of the trial
    assert federation.engine.resources.data.clients[client[0]].num_samples > 5 * trial._BATCHES


def test_threads_are_one_two_four_and_the_most_and_as_before_afterwards(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(trial, "_SECONDS", 0.0)
    federation = federate(*SMALL)
    with restored_threads():
        torch.set_num_threads(1)
        message = federation.server.broadcast(1)
        assert list(seconds_by_threads(federation.engine, message, 3)) == [1, 2, 3]
        assert torch.get_num_threads() == 1


def test_callbacks_of_a_trainer_see_no_trial() -> None:
    federation = federate(*SMALL, "engine=trainer")
    on_trial = federation.engine.on_trial(federation.engine.resources)
    assert type(on_trial) is Serial
