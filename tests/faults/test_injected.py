"""Which clients have which fault, the effect on an update by hand, and whole rounds."""

import logging
from typing import Any

import pytest
import torch
from support.federations import begin_client, federate, take_step
from support.limited import limited

from fedexp.core.messages import Message, Tensors, Update
from fedexp.core.part import Clients, Model, Setting
from fedexp.core.sockets import Phase
from fedexp.errors import InputError
from fedexp.faults.base import Faults
from fedexp.faults.injected import Injected
from fedexp.faults.trigger import Trigger

NOTHING: dict[str, Any] = {"drop": 0.0, "straggle": 0.0, "work": 0.5, "nan": 0.0, "byzantine": 0.0}
NOTHING |= {"knows": "honest", "deviations": None, "direction": "unit", "poisoned": 0.5}
NOTHING["trigger"] = Trigger(size=1, corner="top_left", value=1.0, target=0)
SMALL = ["clients.count=6", "clients.per_round=3", "local.epochs=1", "data.subset=300"]


def injected(seed: int = 0, clients: int = 100, **changes: Any) -> Injected:
    faults = Injected(**{**NOTHING, "attack": "sign_flip", "factor": 1.0, **changes})
    counts = torch.ones(clients, 2, dtype=torch.int64)
    counts[::10] = 0  # every tenth client has no data
    shapes = {"w": torch.Size([2])}
    model = Model(shapes, frozenset(shapes), input_shape=(1, 8, 8))
    faults.setup(Setting(seed, 5, 2, 2, clients, 10, Clients.of(counts), model))
    return faults


MESSAGE = Message(3, {"w": torch.tensor([1.0, 1.0]), "running_var": torch.tensor([2.0])})


def update(client: int) -> Update:
    weights = {"w": torch.tensor([2.0, -1.0]), "running_var": torch.tensor([5.0])}
    extras = {"head": {"p": torch.tensor([1.0]), "count": torch.tensor([7])}}
    return Update(client, 10, weights, extras)


def test_draws_depend_on_seed_round_and_client_alone() -> None:
    where = [(round, client) for round in range(1, 51) for client in range(100)]
    drawn = [injected(drop=0.3).drops_out(*each) for each in where]
    again = injected(drop=0.3, straggle=0.5, nan=0.5)
    assert [again.drops_out(*each) for each in reversed(where)] == drawn[::-1]
    assert sum(drawn) / len(drawn) == pytest.approx(0.3, abs=0.03)  # 4.6 standard errors
    assert drawn != [injected(seed=1, drop=0.3).drops_out(*each) for each in where]
    assert drawn[:100] != drawn[100:200]
    straggled = [again._occurs("straggle", *each) for each in where]
    assert straggled != [again._occurs("nan", *each) for each in where]  # each fault independently


def test_probabilities_of_zero_and_one() -> None:
    where = [(round, client) for round in range(20) for client in range(20)]
    assert not any(injected(drop=0.0).drops_out(*each) for each in where)
    assert all(injected(drop=1.0).drops_out(*each) for each in where)


def test_the_byzantine_share_is_of_the_clients_with_data() -> None:
    byzantine_clients = injected(byzantine=0.2).byzantine_clients
    assert len(byzantine_clients) == 18  # of 90
    assert not any(client % 10 == 0 for client in byzantine_clients)
    assert byzantine_clients == injected(byzantine=0.2, drop=0.5, factor=2.0).byzantine_clients
    assert byzantine_clients != injected(seed=1, byzantine=0.2).byzantine_clients
    assert injected(byzantine=0.0).byzantine_clients == frozenset()


@pytest.mark.parametrize(
    ("attack", "factor", "w"),
    # The honest step is (1, -2).
    [("sign_flip", 1.0, [0.0, 3.0]), ("sign_flip", 3.0, [-2.0, 7.0]), ("scale", 3.0, [4.0, -5.0])],
)
def test_attacks_by_hand(attack: str, factor: float, w: list[float]) -> None:
    faults = injected(byzantine=0.2, attack=attack, factor=factor)
    byzantine = min(faults.byzantine_clients)
    honest = next(client for client in range(1, 100) if client not in faults.byzantine_clients)
    attacked = faults.corrupt(update(byzantine), MESSAGE)
    assert attacked.weights["w"].tolist() == w
    assert attacked.weights["running_var"].item() == 5
    assert attacked.extras["head"]["p"].item() == 1
    assert faults.corrupt(update(honest), MESSAGE).weights["w"].tolist() == [2.0, -1.0]


def test_a_broken_update_is_nan_in_all_floats() -> None:
    broken = injected(nan=1.0).corrupt(update(1), MESSAGE)
    assert all(value.isnan().all() for value in broken.weights.values())
    assert broken.extras["head"]["p"].isnan()
    assert broken.extras["head"]["count"] == 7


def test_each_client_is_counted_once() -> None:
    faults = injected(drop=0.3, straggle=0.4, nan=0.2, byzantine=0.2)
    cohort = [*range(1, 40), 5, 5]  # one that was drawn three times drops out once
    counted = faults.metrics(7, cohort)
    present = [client for client in range(1, 40) if not faults.drops_out(7, client)]
    assert counted == {
        "faults/dropped": 39 - len(present),
        "faults/straggled": sum(faults._occurs("straggle", 7, client) for client in present),
        "faults/nan": sum(faults._occurs("nan", 7, client) for client in present),
        "faults/byzantine": len(faults.byzantine_clients.intersection(present)),
    }
    assert all(counted.values())
    assert Faults().metrics(7, cohort) == {}


def test_clients_that_the_clock_leaves_out_have_no_faults() -> None:
    clients = ["clients.count=8", "clients.per_round=4", "system=lognormal", "system.invite=8"]
    broken = ["faults=unreliable", "faults.drop=0", "faults.straggle=0", "faults.nan=1"]
    metrics = federate(*clients, *broken).run_round(1).metrics
    assert metrics["clock/surplus"] == metrics["faults/nan"] == metrics["clients/quarantined"] == 4


def test_clients_whose_upload_is_late_have_no_faults() -> None:
    """Without the upload client 2 takes 4 + 1 seconds, with it 4 + 2."""
    broken = ["faults=unreliable", "faults.drop=0", "faults.straggle=0", "faults.nan=1"]
    plain = limited(*broken, "system.deadline=5.5")
    network = float(plain.server.broadcast(1).nbytes)
    metrics = limited(*broken, "system.deadline=5.5", network=network).run_round(1).metrics
    assert metrics["clock/late"] == 3
    assert metrics["faults/nan"] == metrics["clients/quarantined"] == 2


def test_flipped_labels_are_a_view() -> None:
    federation = federate(
        *SMALL, "faults=byzantine", "faults.byzantine=0.5", "faults.attack=label_flip"
    )
    faults, data = federation.engine.resources.faults, federation.data
    assert isinstance(faults, Injected)
    assert len(faults.byzantine_clients) == 3
    for client in data.clients:
        seen = faults.data(1, client)
        (pair,), (flipped,) = list(client.batches(10**6)), list(seen.batches(10**6))
        if client.client in faults.byzantine_clients:
            assert torch.equal(flipped[1], 9 - pair[1])
            assert torch.equal(seen.class_counts, torch.bincount(flipped[1], minlength=10))
            assert seen.population.train.inputs is data.train.inputs
            assert seen.population is faults.data(2, client).population  # made once
        else:
            assert seen is client
        assert torch.equal(flipped[0], pair[0])
    byzantine = min(faults.byzantine_clients)
    assert data.clients[byzantine].class_counts.equal(data.class_counts[byzantine])


def test_a_straggler_takes_the_first_steps_of_each_epoch() -> None:
    whole = federate(*SMALL, "local.batch_size=8")
    slow = federate(*SMALL, "local.batch_size=8", "faults=unreliable", "faults.straggle=1")
    data = whole.data
    for client in data.clients:
        seen = slow.engine.resources.faults.data(4, client)
        assert seen.num_samples == client.num_samples
        full, cut = client.local_batches(4, 8), seen.local_batches(4, 8)
        assert len(cut) == max(1, len(full) // 2)
        for _ in range(2):
            steps = list(cut)
            assert len(steps) == len(cut)
            for step, expected in zip(steps, full, strict=False):
                assert torch.equal(step[1], expected[1])
                assert torch.equal(step[0], expected[0])
    module = begin_client(slow.engine, 0, slow.server.broadcast(1))
    slow.engine.fit(module, [Phase(1)])
    assert module.steps == max(1, -(-data.clients[0].num_samples // 8) // 2)


def test_injected_faults_of_probability_zero_change_nothing() -> None:
    plain = federate(*SMALL)
    injected = federate(*SMALL, "faults=byzantine", "faults.byzantine=0")
    for round in (1, 2):
        plain.run_round(round)
        metrics = injected.run_round(round).metrics
    assert all(torch.equal(w, injected.server.weights[n]) for n, w in plain.server.weights.items())
    assert metrics["faults/dropped"] == metrics["faults/byzantine"] == 0


def test_dropped_and_broken_clients_have_no_effect() -> None:
    """The result of the round is that of the other clients alone."""
    options = ["faults.drop=0.4", "faults.nan=0.4", "faults.straggle=0"]
    faulty = federate(*SMALL, "clients.per_round=6", "faults=unreliable", *options)
    faults, cohort = faulty.engine.resources.faults, faulty.sampler.select(1)
    assert isinstance(faults, Injected)
    present = [client for client in cohort if not faults.drops_out(1, client)]
    finite = [client for client in present if not faults._occurs("nan", 1, client)]
    assert 0 < len(finite) < len(present) < len(cohort)

    plain = federate(*SMALL, "clients.per_round=6")
    take_step(plain.server, plain.engine.train(finite, plain.server.broadcast(1)))
    metrics = faulty.run_round(1).metrics
    assert all(torch.equal(w, faulty.server.weights[n]) for n, w in plain.server.weights.items())
    assert metrics["faults/dropped"] == len(cohort) - len(present)
    assert metrics["faults/nan"] == metrics["clients/quarantined"] == len(present) - len(finite)
    assert metrics["cost/download_bytes"] == len(cohort) * faulty.server.broadcast(1).nbytes
    size = sum(w.numel() * w.element_size() for w in faulty.server.weights.values())
    assert metrics["cost/upload_bytes"] == len(present) * size
    assert faulty.sampler.times_chosen.sum() == len(finite)


@pytest.mark.matrix
@pytest.mark.parametrize("algorithm", ["fednh", "fedsc", "scaffold", "feddyn", "fedptr_s"])
def test_a_round_without_updates_changes_nothing(
    algorithm: str, caplog: pytest.LogCaptureFixture
) -> None:
    federation = federate(*SMALL, f"algorithm={algorithm}", "faults=unreliable", "faults.nan=0")
    federation.engine.resources.faults.drop = 0.0  # type: ignore[attr-defined]
    federation.run_round(1)
    before = {name: value.clone() for name, value in federation.server.weights.items()}
    federation.engine.resources.faults.drop = 1.0  # type: ignore[attr-defined]
    with caplog.at_level(logging.WARNING):
        metrics = federation.run_round(2).metrics
    assert "round 2: no update came in; the global model stays as it was" in caplog.text
    assert all(torch.equal(w, federation.server.weights[n]) for n, w in before.items())
    assert metrics["faults/dropped"] == 3
    assert "train/loss" not in metrics
    federation.engine.resources.faults.drop = 0.0  # type: ignore[attr-defined]
    federation.run_round(3)
    assert any(not torch.equal(w, federation.server.weights[n]) for n, w in before.items())


def test_reports_that_are_not_finite_are_left_out() -> None:
    """FedNH: neither weights nor prototypes become NaN, although every second update is."""
    options = ["faults.drop=0", "faults.straggle=0", "faults.nan=0.5"]
    federation = federate(*SMALL, "algorithm=fednh", "faults=unreliable", *options)
    quarantined = sum(
        federation.run_round(round).metrics["clients/quarantined"] for round in range(1, 5)
    )
    assert quarantined > 0
    message = federation.server.broadcast(5)
    sent: list[Tensors] = [message.weights, *message.extras.values()]
    assert all(value.isfinite().all() for group in sent for value in group.values())


def test_raise_stops_the_run_and_names_the_client() -> None:
    options = ["faults=unreliable", "faults.drop=0", "faults.nan=1", "on_bad_update=raise"]
    federation = federate(*SMALL, *options)
    first = federation.sampler.select(1)[0]
    with pytest.raises(InputError, match=f"on_bad_update=raise: round 1: .* client {first} is not"):
        federation.run_round(1)


@pytest.mark.parametrize(
    ("override", "reason"),
    [
        ("faults.drop=1.5", r"faults\.drop=1\.5: .*less than or equal to 1"),
        ("faults.work=0", r"faults\.work=0: .*greater than 0"),
        ("faults.attack=shout", r"faults\.attack=shout: .*'sign_flip', 'scale', 'label_flip'"),
        (
            "faults.byzantine=0.02",
            r"faults\.byzantine=0\.02: is rounded down to 0 of 20 .* 0\.05 for",
        ),
        ("on_bad_update=ignore", r"on_bad_update=ignore: .*'quarantine' or 'raise'"),
    ],
)
def test_wrong_values_are_one_line(override: str, reason: str) -> None:
    with pytest.raises(InputError, match=reason):
        federate("faults=unreliable", override)


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"attack": "scale"}, r"^faults\.factor=1: .* multiplies steps by 1, .* such as 10$"),
        (
            {"attack": "backdoor", "poisoned": 0.2},
            r"^faults\.poisoned=0\.2: is rounded down to 0 of .* at most 2; use at least 0\.5",
        ),
        (
            {"attack": "little_is_enough", "byzantine": 0.02},
            r"^faults\.deviations=null: up to 1 attackers among 10 .* z = 0 .* such as 1\.5$",
        ),
        (
            {"attack": "min_max", "byzantine": 0.02, "knows": "own"},
            r"^faults\.knows=own: .* a single attacker .* sends it unchanged; use honest, or more",
        ),
    ],
)
def test_an_attack_that_changes_nothing_is_refused_with_a_number_that_does(
    changes: dict[str, Any], line: str
) -> None:
    with pytest.raises(InputError, match=line):
        injected(**{"byzantine": 0.2, **changes})


def test_an_attack_on_weights_is_refused_if_none_are_sent() -> None:
    words = [*SMALL, "personalization=prototypes_only", "faults=byzantine", "faults.byzantine=0.5"]
    with pytest.raises(InputError, match=r"^faults\.attack=sign_flip: .* send none; use label_f"):
        federate(*words)
    federate(*words, "faults.attack=label_flip")


def test_without_attackers_no_attack_is_refused() -> None:
    injected(attack="scale")
    injected(attack="backdoor", poisoned=0.0)
    injected(attack="little_is_enough")
    for attack in ("min_max", "backdoor"):
        made = injected(attack=attack)
        assert (made.forbids, made.needs) == ({}, {})


def test_attacks_leave_received_private_weights_alone() -> None:
    """FedPAC sends each client a head, which is private and not in the update."""
    attack = ["faults=byzantine", "faults.byzantine=1", "clients.per_round=6"]
    federation = federate(*SMALL, "algorithm=fedpac", *attack)
    for round in (1, 2):
        assert federation.run_round(round).metrics["faults/byzantine"] == 6
