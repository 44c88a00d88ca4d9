"""Deadlines and over-selection, with devices whose seconds are known by hand."""

from collections.abc import Mapping
from typing import Any

import pytest
import torch
from support.federations import compose, equal, federate, take_step, weights_after
from support.limited import SLOWER, SMALL, limited
from support.refusals import refused

from fedexp.runtime.plan import plan
from fedexp.samplers.request import Request
from fedexp.tracking.tracker import Record


def by_client(record: Record, *columns: str) -> dict[int, Any]:
    rows: Mapping[str, Any] = record.logs["turns"]
    values = zip(*(rows[name] for name in columns), strict=True)
    return dict(zip(rows["client"], values, strict=True))


def test_the_five_clients() -> None:
    record = limited().run_round(1)
    assert by_client(record, "samples", "steps") == dict.fromkeys(range(5), (80, 10))
    assert record.metrics["clock/round_s"] == pytest.approx(80 / 1.0, rel=1e-6)


def test_late_clients_are_dropped_and_the_round_lasts_until_the_deadline() -> None:
    federation = limited("system.deadline=4.1")  # 80 samples: 0.8, 2, 4, 8 and 80 seconds
    record = federation.run_round(1)
    ended = by_client(record, "samples", "upload_bytes", "outcome")
    assert [ended[client][2] for client in range(5)] == ["sent"] * 3 + ["late"] * 2
    assert ended[3][:2] == (80, 0)
    assert record.metrics["clock/round_s"] == 4.1
    assert record.metrics["clock/late"] == 2
    assert "clock/surplus" not in record.metrics
    assert record.metrics["cost/upload_bytes"] == 3 * federation.server.broadcast(1).nbytes


def test_the_update_of_a_late_client_does_not_count() -> None:
    """The global model is that of a cohort without the late clients."""
    found = weights_after(limited("system.deadline=4.1"), 1)
    federation = limited()
    server = federation.server
    take_step(server, federation.engine.train([0, 1, 2], server.broadcast(1)))
    assert equal(found, server.weights)


def test_an_update_that_is_too_large_for_the_deadline_is_late_after_training() -> None:
    """On a slow line the upload, unknown before training, decides; the state goes back."""
    federation = limited("system.deadline=4.1", "algorithm=scaffold", network=1e6)
    record = federation.run_round(1)
    sent = by_client(record, "upload_bytes", "outcome")
    assert [sent[client][1] for client in range(5)] == ["sent", "sent", "sent", "late", "late"]
    upload, download = sent[0][0], by_client(record, "download_bytes")[0][0]
    tight = 80 / 20 + (download + upload) / 1e6 - 1e-4  # the third is 0.1 ms too late
    federation = limited(f"system.deadline={tight}", "algorithm=scaffold", network=1e6)
    trained = []
    fit = federation.engine.fit
    federation.engine.fit = lambda module, *rest: (  # type: ignore[method-assign]
        trained.append(module.data.client),
        fit(module, *rest),
    )[1]
    record = federation.run_round(1)
    assert by_client(record, "outcome")[2] == ("late",)
    assert trained == [0, 1, 2]  # the others cannot be in time, whatever they upload
    assert record.metrics["clock/late"] == 3
    kept = {client: federation.store.memory(client, "regularizer") for client in range(5)}
    assert [client for client, memory in kept.items() if memory] == [0, 1]


@pytest.mark.parametrize(
    ("overrides", "steps"),
    [
        ([], [10, 10, 10, 4, 2]),  # 4.1 s are 41 samples, 5 steps of 8: 2 of 5 steps in 2 epochs
        (["local.steps=10"], [10, 10, 10, 5, 1]),
        (["local.epochs=1", "system.deadline=2.5"], [5, 5, 5, 3, 1]),
    ],
)
@pytest.mark.parametrize("engine", ["serial", "vectorized"])
def test_slow_clients_take_fewer_steps(overrides: list[str], steps: list[int], engine: str) -> None:
    federation = limited(
        "system.deadline=4.1", "system.late=partial", f"engine={engine}", *overrides
    )
    record = federation.run_round(1)
    ended = by_client(record, "steps", "samples", "outcome")
    assert [ended[client][0] for client in range(5)] == steps
    assert [ended[client][1] for client in range(5)] == [8 * each for each in steps]
    # One step of an epoch takes the last client 8 seconds.
    assert [ended[client][2] for client in range(5)] == ["sent"] * 4 + ["late"]


def test_partial_work_is_the_beginning_of_the_whole_work() -> None:
    """A client with a share of its steps sends what a straggler with this share sends."""
    partial = limited("system.deadline=4.1", "system.late=partial")
    message = partial.server.broadcast(1)
    partial.measures.begin_round(message)
    assert partial.select(message, Request()).training == [0, 1, 2, 3]
    (found,) = partial.engine.train([3], message)
    straggling = ("faults=unreliable", "faults.straggle=1", "faults.drop=0", "faults.nan=0")
    straggler = federate(*SMALL, *straggling, "faults.work=0.5")
    (expected,) = straggler.engine.train([3], straggler.server.broadcast(1))
    assert found.steps == expected.steps == 4
    for name, weight in expected.weights.items():
        assert torch.equal(found.weights[name], weight)


def test_a_straggler_works_even_less_if_it_must() -> None:
    straggling = ["faults=unreliable", "faults.straggle=1", "faults.drop=0", "faults.nan=0"]
    federation = limited(
        "system.deadline=1.7", "system.late=partial", *straggling, "faults.work=0.9"
    )
    ended = by_client(federation.run_round(1), "steps", "outcome")
    assert [ended[c][0] for c in range(5)] == [8, 8, 4, 2, 2]  # 4 of 5 steps, as 1.7 s allow


def test_the_first_to_finish_count() -> None:
    federation = limited("clients.per_round=2", "system.invite=4")
    record = federation.run_round(1)
    ended = by_client(record, "outcome", "steps", "upload_bytes")
    assert len(ended) == 4
    fastest = sorted(ended)[:2]
    for client, (outcome, steps, upload) in ended.items():
        assert outcome == ("sent" if client in fastest else "surplus")
        assert steps == 10
        assert (upload > 0) == (client in fastest)
    assert record.metrics["clock/round_s"] == pytest.approx(80 / SLOWER[fastest[1]], rel=1e-6)
    assert record.metrics["clock/surplus"] == 2
    assert record.metrics["cost/download_bytes"] == 4 * federation.server.broadcast(1).nbytes


def test_who_drops_out_is_replaced_by_a_surplus_client() -> None:
    faults = ("faults=unreliable", "faults.drop=0.5", "faults.straggle=0", "faults.nan=0")
    federation = limited("clients.per_round=2", "system.invite=5", *faults)
    for round in (1, 2, 3):
        ended = by_client(federation.run_round(round), "outcome")
        present = sorted(client for client, (how,) in ended.items() if how != "dropped")
        assert sorted(c for c, (how,) in ended.items() if how == "sent") == present[:2]


def test_with_too_few_in_time_the_round_lasts_until_the_deadline() -> None:
    record = limited("clients.per_round=4", "system.invite=5", "system.deadline=4.1").run_round(1)
    ended = by_client(record, "outcome")
    assert [ended[client] for client in range(5)] == [
        *[("sent",)] * 3,
        ("late",),
        ("surplus",),
    ]
    assert record.metrics["clock/round_s"] == 4.1


@pytest.mark.parametrize(
    ("overrides", "error"),
    [
        (["system.deadline=5"], r"system.deadline=5.0: needs simulated devices; choose them"),
        (["system.invite=12"], r"system.invite=12: needs simulated devices"),
        (["availability=diurnal"], r"availability: needs simulated devices"),
        (["system=uniform", "system.invite=9"], r"invite=9: should be at least clients.per_round"),
        (["system=uniform", "system.invite=21"], r"invite=21: should be at most clients.count=20"),
        (
            ["system=uniform", "system.invite=12", "sampler=clustered"],
            r"system.invite=12: counts different clients, but sampler can draw a client several",
        ),
        (
            ["system=uniform", "system.deadline=9", "aggregator=private"],
            r"system: decides by the clients' devices whose updates count",
        ),
        (["system=uniform", "system.download=[2,1]"], r"system.download.*smallest, largest"),
        (["system=uniform", "system.late=never"], r"system.late=never: should be 'drop' or"),
    ],
)
def test_what_cannot_work_is_refused_in_one_line(overrides: list[str], error: str) -> None:
    with refused(error):
        plan(compose(*overrides))


@pytest.mark.parametrize("word", ["loss=cyclic_distillation", "personalization=fedfomo"])
def test_a_client_that_leaves_samples_out_is_planned_with_its_other_samples(word: str) -> None:
    socket = word.partition("=")[0]
    words = [word, f"{socket}.validation=0.8", "system.deadline=17"]
    federation = limited(*words)
    planned = [federation.engine.schedule.samples(client, 1) for client in range(5)]
    assert planned == [2 * 8] * 5  # two epochs of 8 of 40 samples
    federation.run_round(1)
    turns = federation.measures.exchange.turns
    assert [(turn.samples, turn.outcome) for turn in turns] == [(16, "sent")] * 5
