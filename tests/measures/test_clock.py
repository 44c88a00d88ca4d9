"""Simulated time in whole federations: the samples of turns, the log of turns and the metrics."""

from collections import Counter
from typing import Any

import pytest
from support.federations import compose, federate

from fedexp.data.batches import LocalBatches
from fedexp.engines.serial import Serial
from fedexp.errors import InputError
from fedexp.runtime.plan import plan

SMALL = (
    *("clients.count=6", "clients.per_round=3", "data.subset=200", "local.epochs=2", "rounds=3"),
    *("partition.beta=0.3", "model.hidden=[16]", "model.feature_dim=8"),
    *("measure.personal.every=1000", "measure.prototypes.every=1000"),
)
SAME = (
    *("system=uniform", "system.samples_per_second=100", "system.latency=0.5"),
    *("system.download=1e5", "system.upload=2e4"),
)
LENGTHS = [
    [],
    ["local.epochs=1.5"],
    ["local.epochs=[1,3]"],
    ["local.steps=5"],
    ["algorithm=fedrep"],
    ["algorithm=ditto"],
    ["faults=unreliable", "faults.straggle=0.7", "faults.nan=0"],
    ["faults=unreliable", "faults.straggle=0.7", "faults.nan=0", "local.steps=7"],
]


@pytest.mark.parametrize("overrides", LENGTHS, ids=" ".join)
def test_samples_are_the_samples_of_all_steps(
    overrides: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen, gather, personal = Counter[int](), LocalBatches.gather, Serial.begin_personal
    counting = [True]

    def counted(self: LocalBatches, index: Any) -> Any:
        seen[client[0]] += len(index) * counting[0]
        return gather(self, index)

    def uncounted(self: Serial, *arguments: Any) -> Any:
        counting[0] = False  # a separate personal model is trained when the update is ready
        return personal(self, *arguments)

    monkeypatch.setattr(LocalBatches, "gather", counted)
    monkeypatch.setattr(Serial, "begin_personal", uncounted)
    federation, client = federate(*SMALL, *overrides), [0]
    message = federation.server.broadcast(1)
    for client[0] in range(6):
        counting[0] = True
        (update,) = federation.engine.train([client[0]], message)
        assert update.samples == seen[client[0]] > 0


@pytest.mark.matrix
@pytest.mark.parametrize("overrides", LENGTHS, ids=" ".join)
def test_engines_count_the_same_samples(overrides: list[str]) -> None:
    counts = []
    for engine in ("serial", "vectorized"):
        federation = federate(*SMALL, *overrides, f"engine={engine}")
        updates = federation.engine.train(range(6), federation.server.broadcast(1))
        counts.append({each.client: (each.steps, each.samples) for each in updates})
    assert counts[0] == counts[1]


def test_the_clock_by_hand() -> None:
    federation = federate(*SMALL, *SAME, "measure.clock.targets=[0.01,1.0]")
    nbytes = federation.server.broadcast(1).nbytes
    expected, total = [], 0.0
    for round in (1, 2):
        record = federation.run_round(round)
        rows = record.logs["turns"]
        assert rows["download_bytes"] == rows["upload_bytes"] == [nbytes] * 3
        seconds = [1.0 + nbytes / 1e5 + n / 100 + nbytes / 2e4 for n in rows["samples"]]
        total += max(seconds)
        expected.append(total)
        metrics = record.metrics
        assert metrics["clock/round_s"] == pytest.approx(max(seconds))
        assert metrics["clock/seconds"] == pytest.approx(total)
        assert metrics["clock/idle_share"] == pytest.approx(1 - sum(seconds) / 3 / max(seconds))
        assert metrics["clock/time_to/0.01"] == pytest.approx(expected[0])
        assert "clock/time_to/1" not in metrics


@pytest.mark.parametrize(
    "overrides",
    [
        [],
        ["sampler=power_of_choice", "sampler.candidates=5"],
        ["sampler=clustered", "aggregator=uniform"],
        ["faults=unreliable", "faults.drop=0.5", "faults.nan=0.3"],
        ["algorithm=ifca"],
    ],
    ids=" ".join,
)
def test_the_bytes_of_the_turns_are_the_bytes_of_the_round(overrides: list[str]) -> None:
    federation = federate(*SMALL, *overrides)
    for round in (1, 2, 3):
        record = federation.run_round(round)
        rows, metrics = record.logs["turns"], record.metrics
        assert sum(rows["download_bytes"]) == metrics["cost/download_bytes"]
        assert sum(rows["upload_bytes"]) == metrics["cost/upload_bytes"]
        outcomes = Counter(rows["outcome"])
        assert outcomes["dropped"] == metrics.get("faults/dropped", 0)
        assert outcomes["refused"] == metrics["clients/quarantined"]
        trained = [c for c, o in zip(rows["client"], rows["outcome"], strict=True) if o != "asked"]
        assert trained == list(dict.fromkeys(federation.measures.exchange.cohort))


def test_without_devices_nothing_is_measured() -> None:
    record = federate(*SMALL, "measure.clock.targets=[0.01]").run_round(1)
    assert not [name for name in record.metrics if name.startswith("clock/")]


@pytest.mark.parametrize("without", ["~measure.global", "algorithm=fedper"])
def test_a_target_needs_the_accuracy_of_the_global_model(without: str) -> None:
    targets = ("measure.clock.targets=[0.01]", "objective=clock/time_to/0.01")
    with pytest.raises(InputError, match=r"^measure\.clock\.targets=\[0\.01\]: needs global/acc"):
        plan(compose(*SAME, *targets, without))
    plan(compose("measure.clock.targets=[0.01]", "objective=train/loss", without))  # no time


def test_an_accuracy_that_is_not_measured_in_this_round_reaches_no_target() -> None:
    federation = federate(*SMALL, *SAME, "measure.clock.targets=[0.01]", "measure.global.every=2")
    assert "clock/time_to/0.01" not in federation.run_round(1).metrics
    assert "clock/time_to/0.01" in federation.run_round(2).metrics
