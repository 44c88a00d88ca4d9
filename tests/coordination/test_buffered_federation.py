"""Federations with a buffer against FedAvg, against a plain loop, and between engines."""

from pathlib import Path

import numpy as np
import pytest
import torch
from support.federations import compose, equal, federate, timeless
from support.partner_options import PARTNERS
from support.plain_loop import EPOCHS, LR, SETTING, PlainLoop
from support.refusals import refused

from fedexp.coordination.flights import Flight, Flights
from fedexp.core.messages import Message, Tensors
from fedexp.core.randomness import numpy_generator
from fedexp.errors import InputError
from fedexp.regularizers.control_variates import ControlVariates
from fedexp.runtime.federation import Federation
from fedexp.runtime.plan import plan
from fedexp.samplers.request import Request, Selected
from fedexp.system.devices import Devices
from fedexp.testing.federations import federation_of, resume

BUFFERED = ("coordination=buffered", "system=lognormal")
PLAIN_SGD = ("optimizer.momentum=0", "optimizer.weight_decay=0")
EQUAL = (*(each for each in SETTING if "beta" not in each), "partition=iid")
"""Clients of the same size: with equal devices their turns take the same time."""

UNEQUAL = [40.0, 70.0, 110.0, 230.0, 370.0]
"""Samples per second of five clients."""


def buffered(*overrides: str, speeds: list[float] = UNEQUAL) -> Federation:
    federation = federate(*SETTING, *BUFFERED, *overrides)
    give_devices(federation, speeds)
    return federation


def give_devices(federation: Federation, speeds: list[float]) -> None:
    """Devices of these speeds on a network that takes no time."""
    lines = np.full(len(speeds), np.inf)
    federation.system.devices = Devices(np.array(speeds), lines, lines, np.zeros(len(speeds)))


def trained(federation: Federation, rounds: int = 4) -> list[Tensors]:
    """The global weights after each round."""
    return [run_round(federation, round) for round in range(1, rounds + 1)]


def run_round(federation: Federation, round: int) -> Tensors:
    federation.run_round(round)
    return federation.server.weights


@pytest.mark.parametrize("engine", ["serial", "vectorized"])
@pytest.mark.parametrize("method", ["fedavg", "fednh", "scaffold"])
def test_with_equal_turns_and_a_buffer_for_all_it_is_the_synchronous_run(
    method: str, engine: str
) -> None:
    options = [*EQUAL, f"algorithm={method}", f"engine={engine}", *PLAIN_SGD]
    plain = federate(*options)
    other = federate(*options, *BUFFERED, "coordination.buffer=3")
    give_devices(other, [100.0] * 5)
    assert all(map(equal, trained(plain), trained(other)))


def test_fedasync_equals_a_plain_loop() -> None:
    alpha, concurrency = 0.6, 3
    options = ["coordination.buffer=1", "coordination.step_from=current", "aggregator=momentum"]
    options += ["aggregator.beta1=0", f"aggregator.lr={alpha}"]
    found = trained(buffered(*options), rounds=7)

    loop = PlainLoop()
    weights, now, flying = loop.start, 0.0, dict[int, tuple[float, int, Tensors]]()
    stale = 0
    for round, expected in enumerate(found, start=1):
        free = [client for client in range(5) if client not in flying]
        draw = numpy_generator(0, "sampler", round)
        for client in draw.choice(free, concurrency - len(flying), replace=False).tolist():
            local = dict(weights)
            for batch in loop.batches(round, client):
                gradient = loop.gradient(local, batch)
                local = {name: local[name] - LR * gradient[name] for name in local}
            seconds = EPOCHS * loop.samples[client] / UNEQUAL[client]
            flying[client] = now + seconds, round, local
        first = min(flying, key=lambda client: flying[client][0])
        now, start, local = flying.pop(first)
        stale += round > start
        share = alpha * (1 + round - start) ** -0.5
        weights = {name: (1 - share) * w + share * local[name] for name, w in weights.items()}
        for name, value in weights.items():
            torch.testing.assert_close(expected[name], value, rtol=0, atol=2e-6)
    assert stale >= 3


@pytest.mark.slow
def test_engines_give_the_same_weights() -> None:
    serial = trained(buffered("coordination.buffer=2"))
    trainer = trained(buffered("coordination.buffer=2", "engine=trainer"))
    vectorized = trained(buffered("coordination.buffer=2", "engine=vectorized"))
    assert all(map(equal, serial, trainer))
    for name, value in serial[-1].items():
        torch.testing.assert_close(vectorized[-1][name], value, rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    "method",
    [
        *(["algorithm=scaffold"], ["algorithm=fednh"], ["algorithm=hics"]),
        ["compression=topk", "compression@download=qsgd"],
        # Stale clients started from an older model than the server sends now.
        ["compression=topk", "compression@download=topk", "download.share=0.1"],
    ],
)
def test_a_resumed_run_goes_on_with_the_clients_in_flight(method: list[str]) -> None:
    overrides = [*SETTING, *BUFFERED, *PLAIN_SGD, "coordination.buffer=2", *method]
    whole = federate(*overrides)
    whole.run_round(1)
    staleness = 0.0
    with federation_of(compose(*overrides)) as second:
        resume(second, whole)
        for round in (2, 3, 4):
            first, again = (each.run_round(round).metrics for each in (whole, second))
            assert timeless(first) == timeless(again)
            staleness += first["coordination/staleness"]
        assert staleness > 0
        assert equal(whole.server.weights, second.server.weights)


def test_bytes_are_counted_when_they_are_sent() -> None:
    federation, model = buffered("coordination.buffer=2"), 0
    for round in range(1, 4):
        record = federation.run_round(round)
        turns = record.logs["turns"]
        outcomes = list(turns["outcome"])
        model = model or max(turns["download_bytes"])
        assert outcomes.count("buffered") == 2
        assert record.metrics["cost/download_bytes"] == outcomes.count("started") * model
        assert record.metrics["cost/upload_bytes"] == 2 * model
        assert sum(turns["download_bytes"]) == record.metrics["cost/download_bytes"]
        assert record.metrics["time/server_s"] >= 0
    assert record.metrics["coordination/in_flight"] == 2
    assert "clock/idle_share" not in record.metrics


def test_no_client_waits_for_the_slowest() -> None:
    slow = [100.0, 100.0, 100.0, 100.0, 0.1]
    clocks = []
    for coordination in ([*BUFFERED, "coordination.buffer=2"], ["system=lognormal"]):
        federation = federate(*EQUAL, *coordination, "clients.per_round=5")
        give_devices(federation, slow)
        trained(federation, rounds=3)
        clocks.append(federation.system.now)
    assert clocks[0] < clocks[1] / 100


def test_clients_that_drop_out_and_updates_that_are_refused_keep_the_run_going() -> None:
    faults = ["faults=unreliable", "faults.drop=0.4", "faults.nan=0.3", "faults.straggle=0"]
    federation = buffered("coordination.buffer=2", *faults)
    outcomes = [set(federation.run_round(round).logs["turns"]["outcome"]) for round in range(1, 7)]
    assert set().union(*outcomes) == {"started", "dropped", "buffered", "refused"}
    nobody = buffered("coordination.buffer=2", *faults, "faults.drop=1")
    before = dict(nobody.server.weights)
    assert nobody.run_round(1).metrics["coordination/in_flight"] == 0
    assert equal(before, nobody.server.weights)


def test_clients_start_only_while_they_are_available() -> None:
    options = ["availability=bernoulli", "availability.p=0.4", "availability.every=1"]
    federation = buffered("coordination.buffer=1", *options)
    select, system, starts = federation.select, federation.system, list[int]()

    def noted(message: Message, request: Request) -> Selected:
        flying = federation.coordination.metrics()["coordination/in_flight"]
        chosen = select(message, request)
        assert system._availability.present(system.now)[list(chosen.clients)].all()
        assert not set(chosen.clients) & set(request.busy)
        assert request.waits == (flying == 0)
        starts.extend(chosen.clients)
        return chosen

    federation.select = noted  # type: ignore[method-assign]
    trained(federation, rounds=8)
    assert len(starts) >= 8


def test_the_server_steps_with_fewer_updates_if_nobody_else_will_be_available(
    tmp_path: Path,
) -> None:
    file = tmp_path / "trace.csv"
    file.write_text("client,from,to\n1,0,9000\n3,0,9000\n")
    options = ["coordination.buffer=3", "availability=trace", f"availability.file={file}"]
    federation = buffered(*options)
    for round in (1, 2):
        turns = federation.run_round(round).logs["turns"]
        outcomes = zip(turns["client"], turns["outcome"], strict=True)
        assert sorted(client for client, outcome in outcomes if outcome == "buffered") == [1, 3]


@pytest.mark.parametrize(
    ("overrides", "line"),
    [
        (["system=none"], "coordination=buffered: needs simulated time"),
        (
            ["system=phones", "engine.devices=2"],
            "engine.devices=2 .*coordination=buffered trains in one process",
        ),
        (
            ["system=phones", "coordination.buffer=4"],
            "coordination.buffer=4: must be at most clients.per_round=3",
        ),
        (["system=phones", "system.deadline=5"], "coordination=buffered: .*system.deadline"),
        (["system=phones", "system.invite=4"], "coordination=buffered: .*system.invite"),
        (
            ["system=phones", "algorithm=feddyn"],
            "coordination=buffered: the server half of this regularizer",
        ),
        (["system=phones", "aggregator=private"], "aggregator=private knows epsilon only for"),
    ],
)
def test_a_combination_that_cannot_work_is_refused(overrides: list[str], line: str) -> None:
    with refused(line):
        plan(compose(*SETTING, "coordination=buffered", "coordination.buffer=2", *overrides))


# As docs/concepts/asynchronous.md has them.
WORK = ["aggregator=median", "aggregator=norm_clipped", "aggregator=adam", "aggregator=disco"]
WORK += [f"algorithm={each}" for each in ("fednova", "fednh", "fedproto", "scaffold", "fedptr")]
WORK += ["algorithm=fedptr_s", "sampler=random", "sampler=weighted", "sampler=hics"]
READ_CURRENT_UPDATES = [f"aggregator={each}" for each in ("fltrust", "cross_round", "agnostic")]
READ_CURRENT_UPDATES += [f"algorithm={each}" for each in ("fedsc", "fedgen", "ccvr", "creff")]
READ_CURRENT_UPDATES += [f"algorithm={each}" for each in ("feddyn", "feddc", "fedadmm", "fedacg")]
READ_CURRENT_UPDATES += [f"algorithm={each}" for each in ("fedcm", "fedcurv", "ifca", "cfl")]
READ_CURRENT_UPDATES += [f"algorithm={each}" for each in ("fedamp", "fedpac", "fedfomo")]
READ_CURRENT_UPDATES += ["algorithm=pfedsim", "algorithm=fedcac", "sampler=power_of_choice"]
READ_CURRENT_UPDATES += [f"sampler={each}" for each in ("clustered", "divfl", "round_robin")]


@pytest.mark.matrix
@pytest.mark.parametrize("option", [*WORK, *READ_CURRENT_UPDATES])
def test_what_combines_with_it(option: str) -> None:
    words = [*SETTING, *BUFFERED, "coordination.buffer=2", option, *PARTNERS.get(option, [])]
    if option in WORK:
        plan(compose(*words))
        return
    with pytest.raises(InputError, match=r"^coordination=buffered: the server half of this"):
        plan(compose(*words))


@pytest.mark.parametrize(
    ("overrides", "warned"),
    [
        (["coordination.step_from=current"], True),
        (["coordination.step_from=current", "sampler.signal=class_counts"], False),
        (
            [
                "coordination.step_from=current",
                *("sampler.signal=class_counts", "sampler.angle_on=head"),
            ],
            True,
        ),
        (["coordination.step_from=received"], False),
    ],
)
def test_updates_that_hold_the_servers_movement_are_warned_of(
    overrides: list[str], warned: bool, caplog: pytest.LogCaptureFixture
) -> None:
    fixed = [*SETTING, *BUFFERED, "coordination.buffer=2", "aggregator=uniform"]
    plan(compose(*fixed, "sampler=hics_scale_free", *overrides))
    assert ("what the server moved in the meantime" in caplog.text) == warned
    assert "staleness shortens" not in caplog.text


@pytest.mark.parametrize(
    ("method", "warned", "line"),
    [
        ("fedala", "received", "may send weights that are not the received ones plus a new step"),
        ("fednova", "current", "also has what the server moved in the meantime"),
    ],
)
@pytest.mark.parametrize("step_from", ["received", "current"])
def test_late_updates_that_are_more_than_a_step_are_warned_of(
    method: str, warned: str, line: str, step_from: str, caplog: pytest.LogCaptureFixture
) -> None:
    words = [*SETTING, *BUFFERED, "coordination.buffer=2", f"algorithm={method}", *PLAIN_SGD]
    plan(compose(*words, f"coordination.step_from={step_from}"))
    assert (line in caplog.text) == (step_from == warned)


def test_a_server_half_that_does_not_declare_it_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    overrides = [*SETTING, *BUFFERED, "coordination.buffer=2", "algorithm=scaffold", *PLAIN_SGD]
    plan(compose(*overrides))
    monkeypatch.setattr(ControlVariates, "traits", frozenset())
    with pytest.raises(InputError, match="the server half of this regularizer"):
        plan(compose(*overrides))


def test_the_clock_never_goes_back_if_clients_leave_samples_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Their updates arrive earlier than with all samples, so others must not arrive first."""
    landed: list[float] = []

    def land(flights: Flights, now: float, updates: int) -> list[Flight]:
        landed.append(now)
        return find(flights, now, updates)

    find = Flights.land
    monkeypatch.setattr(Flights, "land", land)
    words = ("loss=cyclic_distillation", "loss.validation=0.8", "rounds=8", "clients.count=12")
    federation = federate(*SETTING, *BUFFERED, *words, "clients.per_round=6", "system.latency=0")
    for round in range(1, 9):
        federation.run_round(round)
    assert len(landed) > 20
    assert landed == sorted(landed)
