import logging
from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from support.federations import equal, federate

from fedexp.core.messages import Tensors, Update
from fedexp.errors import InputError
from fedexp.faults.quarantine import Quarantine, is_finite
from fedexp.runtime.federation import Federation
from fedexp.state.client_state import ClientState

EVERYBODY = ["clients.count=4", "clients.per_round=4", "data.subset=120", "local.epochs=1"]
MATCHING = ["regularizer.ipc=1", "regularizer.outer_steps=1", "regularizer.inner_steps=1"]
WITH_MEMORY = [
    ["algorithm=scaffold"],
    ["algorithm=feddyn"],
    ["algorithm=feddc"],
    ["algorithm=fedptr", *MATCHING, "regularizer.lag=1"],
    ["algorithm=moon"],
    ["algorithm=fedrep", "personalization.head_epochs=1"],
    ["algorithm=ditto", "regularizer=control_variates"],
]


def update(client: int, w: Sequence[float] = (1.0, 2.0), report: object = 0.0) -> Update:
    weights = {"w": torch.tensor(w), "seen": torch.tensor(3)}
    return Update(client, 1, weights, {"head": {"r": torch.tensor(report)}})


def arrived(*updates: Update) -> list[Update]:
    """The updates with the mark that an engine gives them."""
    return [replace(each, is_finite=is_finite(each)) for each in updates]


@pytest.mark.parametrize(
    ("bad", "named"),
    [
        (update(7, w=[1.0, torch.nan]), "(w[1])"),
        (update(7, w=[torch.inf, 0.0]), "(w[0])"),
        (update(7, w=[torch.inf, torch.nan]), "(w)"),
        (update(7, report=[[0, 1], [2, torch.inf], [3, torch.nan]]), "(head: r[1])"),
        (update(7, report=-torch.inf), "(head: r)"),
        (update(7, w=[torch.nan, 0.0], report=torch.nan), "(w[0] and 1 more)"),
    ],
)
def test_an_update_that_is_not_finite_is_left_out_and_named(
    bad: Update, named: str, caplog: pytest.LogCaptureFixture
) -> None:
    quarantine = Quarantine("quarantine")
    with caplog.at_level(logging.WARNING):
        passed = [
            each.client
            for each in arrived(update(1), bad, update(9))
            if quarantine.accepts(each, 4)
        ]
        quarantine.warn(4, accepted=2)
    assert passed == [1, 9]
    message = f"round 4: the update of client 7 is not finite {named}; it is left out"
    assert [record.message for record in caplog.records] == [message]
    assert quarantine.clients == [7]


def test_several_updates_that_are_left_out_are_one_line(caplog: pytest.LogCaptureFixture) -> None:
    quarantine = Quarantine("quarantine")
    for bad in arrived(*(update(client, report=torch.nan) for client in (3, 5, 6, 7, 8, 9))):
        assert not quarantine.accepts(bad, 2)
    quarantine.warn(2, accepted=4)
    assert caplog.messages == [
        "round 2: 6 of 10 updates are not finite (client 3: head: r; also clients 5, 6, 7, 8, "
        "...); they are left out"
    ]


def test_each_round_has_its_own_list() -> None:
    quarantine = Quarantine("quarantine")
    (bad,) = arrived(update(1, report=torch.nan))
    assert not quarantine.accepts(bad, 1)
    quarantine.begin_round()
    assert quarantine.accepts(update(1), 2)
    assert quarantine.clients == []


def test_large_values_and_empty_updates_are_finite() -> None:
    largest = update(1, w=[torch.finfo().max, torch.finfo().min])
    nothing = Update(2, 1, {})
    assert all(Quarantine("raise").accepts(each, 1) for each in arrived(largest, nothing))


def test_raise_names_the_client() -> None:
    (bad,) = arrived(update(5, report=torch.nan))
    with pytest.raises(InputError, match="round 2: the update of client 5 is not finite"):
        Quarantine("raise").accepts(bad, 2)


def state_of(federation: Federation, client: int) -> Tensors:
    """A copy of the client's state."""
    state = dict(federation.store.states()).get(client, ClientState())
    groups = state.memories | {
        each: getattr(state, each) for each in ("private", "separate_model", "personal_model")
    }
    return {f"{g}/{name}": w.clone() for g, group in groups.items() for name, w in group.items()}


@pytest.mark.matrix
@pytest.mark.parametrize("engine", ["serial", "vectorized"])
@pytest.mark.parametrize("overrides", WITH_MEMORY, ids=" ".join)
def test_a_client_that_is_left_out_keeps_its_old_state(overrides: list[str], engine: str) -> None:
    federation = federate(*EVERYBODY, "partition=iid", *overrides, f"engine={engine}")
    data = federation.data
    inputs, sample = data.train.inputs, data.clients[2].train_index[0]
    federation.run_round(1)
    before = [state_of(federation, client) for client in range(4)]
    assert before[2]
    original = inputs[sample].clone()
    inputs[sample] = torch.nan
    metrics = federation.run_round(2).metrics
    inputs[sample] = original
    assert metrics["clients/quarantined"] == 1
    assert [equal(state_of(federation, client), before[client]) for client in range(4)] == [
        *[False, False, True, False]
    ]
    metrics = federation.run_round(3).metrics
    assert metrics["clients/quarantined"] == 0
    assert not equal(state_of(federation, 2), before[2])


@pytest.mark.parametrize("engine", ["serial", "vectorized"])
def test_the_engine_marks_an_update_and_the_loop_leaves_it_out(engine: str) -> None:
    federation = federate(*EVERYBODY, "partition=iid", "algorithm=scaffold", f"engine={engine}")
    message, data = federation.server.broadcast(1), federation.data
    data.train.inputs[data.clients[2].train_index[0]] = torch.nan
    federation.measures.begin_round(message)
    trained = list(federation.engine.train(range(4), message))
    assert {each.client for each in trained if not each.is_finite} == {2}
    assert [client for client in range(4) if not state_of(federation, client)] == [2]
    accepted = [each.client for each in federation.accepted(trained)]
    assert sorted(accepted) == [0, 1, 3]
    assert federation.quarantine.clients == [2]
    assert federation.measures.exchange.upload_bytes == sum(each.nbytes for each in trained)


@pytest.mark.parametrize("engine", ["serial", "vectorized"])
def test_a_client_that_is_left_out_in_its_first_round_has_no_state(engine: str) -> None:
    faults = ["faults=unreliable", "faults.nan=1", "faults.drop=0", "faults.straggle=0"]
    federation = federate(*EVERYBODY, "algorithm=scaffold", *faults, f"engine={engine}")
    assert federation.run_round(1).metrics["clients/quarantined"] == 4
    store = federation.store
    assert [state_of(federation, client) for client in range(4)] == [{}] * 4
    assert list(store.memories("regularizer")) == store.clients_with_model == []


KEPT = {
    "private layers": ["algorithm=local", "optimizer.lr=1e30"],
    "a separate model": ["algorithm=ditto", "personalization.lam=1e38", "local.epochs=2"],
}


@pytest.mark.parametrize("engine", ["serial", "vectorized"])
@pytest.mark.parametrize("kind", KEPT)
def test_weights_that_a_client_keeps_are_finite(
    kind: str, engine: str, caplog: pytest.LogCaptureFixture
) -> None:
    """What is sent is finite, or nothing; the personal models were NaN, without a word."""
    federation = federate(*EVERYBODY, *KEPT[kind], f"engine={engine}")
    assert federation.run_round(1).metrics["clients/quarantined"] == 4
    assert "4 of 4 updates are not finite (client " in caplog.text
    assert ": weights that the client keeps; also clients " in caplog.text
    assert [state_of(federation, client) for client in range(4)] == [{}] * 4
