import itertools
import logging
import math
from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import entropy
from support.federations import compose, federate
from support.state_files import through_a_file
from torch import Tensor

from fedexp.core.description import Description
from fedexp.core.messages import PartUpdate, Tensors
from fedexp.core.part import Clients, Model, Setting
from fedexp.errors import InputError
from fedexp.runtime.plan import plan
from fedexp.samplers.heterogeneity import distances_within
from fedexp.samplers.hics import HiCS
from fedexp.samplers.signals import ClassCounts, WeightUpdate

BIAS = "head.linear.bias"
SHAPES = {"head.linear.weight": torch.Size([4, 3]), BIAS: torch.Size([4])}
MODEL = Model(SHAPES, frozenset(SHAPES))
OPTIONS: dict[str, Any] = {
    "signal": "auto",
    "temperature": 0.1,
    "scale": "fixed",
    "lam": 0.1,
    "gamma_0": 4.0,
    "clusters": None,
    "linkage_on": "rows",
    "exact_up_to": 2000,
    "landmarks": 1000,
    "refresh": "always",
    "warm_up_rounds": None,
    "warm_up_order": "random",
    "angle_on": "signal",
}


def setting(sizes: list[int], per_round: int, rounds: int = 20, seed: int = 0) -> Setting:
    """Clients with so many samples each, all of class ``client % 4``."""
    counts = torch.zeros(len(sizes), 4, dtype=torch.int64)
    counts[torch.arange(len(sizes)), torch.arange(len(sizes)) % 4] = torch.tensor(sizes)
    return Setting(seed, rounds, 4, 3, len(sizes), per_round, Clients.of(counts), MODEL)


def prepared(about: Setting, **options: Any) -> HiCS:
    sampler = HiCS(**OPTIONS | options)
    sampler.setup(about)
    return sampler


def send(sampler: HiCS, signals: Tensor, clients: list[int]) -> None:
    """The server receives these clients' updates."""
    sampler.aggregate([PartUpdate(k, 1, {}, {"signal": signals[k]}) for k in clients])


def random_signals(clients: int, seed: int = 0) -> Tensor:
    return 0.3 * torch.randn(clients, 4, generator=torch.Generator().manual_seed(seed))


def test_warm_up_selects_each_client_with_data_once() -> None:
    sampler = prepared(setting([3, 0, 5, 1, 9, 2, 2, 0, 7], 3))
    cohorts = [sampler.select(round) for round in (1, 2, 3)]
    assert [len(cohort) for cohort in cohorts] == [3, 3, 1]
    assert sorted(itertools.chain(*cohorts)) == [0, 2, 3, 4, 5, 6, 8]
    other = prepared(setting([3, 0, 5, 1, 9, 2, 2, 0, 7], 3, seed=1))
    assert [other.select(round) for round in (1, 2, 3)] != cohorts


def test_a_client_that_is_away_in_its_round_of_the_warm_up_is_selected_in_a_later_one() -> None:
    sampler = prepared(setting([1] * 9, 3))
    away = sampler.order[0]
    sampler.limit_to(np.arange(9) != away)
    cohorts = [sampler.select(1)]
    sampler.times_chosen[cohorts[0]] += 1
    sampler.limit_to(None)
    cohorts.append(sampler.select(2))
    sampler.times_chosen[cohorts[1]] += 1
    resumed = prepared(setting([1] * 9, 3))
    resumed.load_server_state(through_a_file(sampler.server_state()))
    cohorts.append(sampler.select(3))
    assert resumed.select(3) == cohorts[2]
    assert away in cohorts[2]
    assert sorted(itertools.chain(*cohorts)) == list(range(9))


@pytest.mark.parametrize("linkage_on", ["rows", "condensed"])
def test_after_warm_up_a_cohort_is_k_different_clients_with_data(linkage_on: str) -> None:
    sampler = prepared(setting([3, 0, 5, 1, 9, 2, 2, 0, 7], 3), linkage_on=linkage_on)
    send(sampler, random_signals(9), [0, 2, 3, 4, 5, 6])  # that of 8 was lost: its signal is zero
    for round in range(4, 25):  # also beyond T = 20
        cohort = sampler.select(round)
        assert len(set(cohort)) == len(cohort) == 3
        assert set(cohort) <= {0, 2, 3, 4, 5, 6, 8}
        assert sampler.select(round) == cohort


def test_a_cohort_depends_on_seed_round_and_signals_alone() -> None:
    first, other = (prepared(setting([1] * 30, 5, rounds=1000, seed=seed)) for seed in (0, 1))
    again = prepared(setting([1] * 30, 5, rounds=1000))
    for sampler in (first, other, again):
        send(sampler, random_signals(30), list(range(30)))
    assert again.select(9) == first.select(9)  # independent of the draws in between
    assert len({tuple(first.select(round)) for round in range(7, 17)}) > 5
    assert first.select(9) == again.select(9)
    assert other.select(9) != first.select(9)


def test_with_too_few_clients_all_take_part() -> None:
    sampler = prepared(setting([0, 4, 0, 1], 3))
    assert sampler.select(1) == [1, 3]
    send(sampler, random_signals(4), [1, 3])
    assert sampler.select(2) == [1, 3]
    assert prepared(setting([0, 4], 2)).select(2) == [1]


def test_high_entropy_is_preferred_at_first_and_not_in_the_last_round() -> None:
    """Half of the clients have the signal of one class, half that of all; gamma_t falls to 0."""
    signals = torch.zeros(20, 4)
    signals[::2, 0] = 1.0
    sampler = prepared(setting([1] * 20, 4, rounds=1000), clusters=2, gamma_0=3.0)
    send(sampler, signals, list(range(20)))
    assert sampler.gamma(250) == pytest.approx(2.25)
    assert sampler.gamma(1000) == sampler.gamma(1001) == 0
    early = Counter(k % 2 for round in range(6, 56) for k in sampler.select(round))
    late = Counter(k % 2 for round in range(951, 1001) for k in sampler.select(round))
    assert early[1] > 190  # odds e^(3 ln 4) = 64 to 1
    assert abs(late[1] - 100) < 40  # about even
    assert sampler.metrics()["sampler/clusters"] == 2


def test_clusters_are_numbered_by_mean_entropy() -> None:
    signals = torch.zeros(6, 4)
    signals[0:2, 1] = 5.0  # one class: entropy 0
    signals[2:4, :2] = 5.0  # two: ln 2
    sampler = prepared(setting([1] * 6, 3))  # the last two: ln 4
    send(sampler, signals, list(range(6)))
    sampler.select(3)
    assert sampler.memberships[3].tolist() == [0, 0, 1, 1, 2, 2]


def test_cohorts_are_the_same_after_a_restart() -> None:
    about = setting([3, 0, 5, 1, 9, 2, 2, 4, 7], 2)
    first, second = prepared(about), prepared(about)
    for round in range(1, 8):
        send(first, random_signals(9, round), first.select(round))
    second.load_server_state(through_a_file(first.server_state()))
    assert torch.equal(second.times_chosen, first.times_chosen)
    for round in range(8, 15):
        cohort = first.select(round)
        assert second.select(round) == cohort
        for sampler in (first, second):
            send(sampler, random_signals(9, round), cohort)
    assert first.metrics() == second.metrics()
    assert set(first.memberships) == set(second.memberships) == set(range(5, 15))
    assert set(first.server_state()) == {"times_chosen", "signals", "memberships"}


def test_a_saved_state_does_not_change_later() -> None:
    sampler = prepared(setting([1] * 4, 2))
    state = sampler.server_state()
    send(sampler, random_signals(4), [0, 1, 2, 3])
    assert state["times_chosen"].sum() == 0
    assert state["signals"].abs().sum() == 0


def test_a_signal_that_is_not_finite_is_ignored() -> None:
    sampler = prepared(setting([1] * 4, 2))
    send(sampler, random_signals(4), [0, 1, 2, 3])
    known = sampler.signals.clone()
    send(sampler, torch.full((4, 4), math.nan), [0, 2])
    assert torch.equal(sampler.signals, known)
    assert len(sampler.select(3)) == 2


def test_spearman_is_absent_where_it_is_not_defined() -> None:
    sampler = prepared(setting([1] * 4, 2))  # every client has one class: all entropies are 0
    send(sampler, random_signals(4), [0, 1])
    assert sampler.metrics() == {}


# The options of the released code.


def test_warm_up_in_the_order_of_the_clients() -> None:
    sampler = prepared(setting([3, 0, 5, 1, 9, 2, 2, 0, 7], 3), warm_up_order="client")
    assert [sampler.select(round) for round in (1, 2, 3)] == [[0, 2, 3], [4, 5, 6], [8]]


def test_what_is_stored_of_a_client_is_its_last_or_its_first_signal() -> None:
    first, second = random_signals(4, 1), random_signals(4, 2)
    for refresh, expected in (
        ("always", [second[0], first[1], second[2], torch.zeros(4)]),
        ("warm_up", [first[0], first[1], second[2], torch.zeros(4)]),
    ):
        sampler = prepared(setting([1] * 4, 2), refresh=refresh)
        send(sampler, first, [0, 1])  # those of 2 and 3 were lost
        send(sampler, second, [0, 2])
        assert torch.equal(sampler.signals, torch.stack(expected))
        assert sampler.times_chosen.tolist() == [2, 1, 1, 0]


def test_with_refresh_after_warm_up_clusters_and_estimates_stay() -> None:
    about = setting([1] * 12, 3, rounds=1000)
    frozen, fresh = prepared(about, refresh="warm_up"), prepared(about)
    for round in range(1, 5):
        for sampler in (frozen, fresh):
            send(sampler, random_signals(12), sampler.select(round))
    for round in range(5, 9):
        for sampler in (frozen, fresh):
            send(sampler, random_signals(12, round), sampler.select(round))
    assert torch.equal(frozen.signals, random_signals(12))
    assert not torch.equal(fresh.signals, random_signals(12))
    clusters = [frozen.memberships[round].tolist() for round in range(5, 9)]
    assert clusters == [clusters[0]] * 4


def moved_head(weight: list[list[float]], bias: list[float]) -> tuple[Tensors, Tensors]:
    """The weights after these steps, and before."""
    before = {"head.linear.weight": torch.full((4, 3), 2.0), BIAS: torch.arange(4.0)}
    step = {"head.linear.weight": torch.tensor(weight), BIAS: torch.tensor(bias)}
    return {name: before[name] + step[name] for name in before}, before


def test_the_head_update_is_of_weights_and_bias_together() -> None:
    weight = [[1.0, 2.0, 3.0], [0.0, 0.0, 0.0], [-1.0, 0.0, 4.0], [0.0, 8.0, 1.0]]
    after, before = moved_head(weight, [0.5, -0.5, 0.0, 1.0])
    for signal, expected in (("bias", [0.5, -0.5, 0, 1]), ("weight_rowmean", [2, 0, 1, 3])):
        sampler = prepared(setting([1] * 4, 2), signal=signal, angle_on="head")
        found = sampler.extract(after, before)
        assert found["signal"].tolist() == expected
        assert found["head_update"].tolist() == [*itertools.chain(*weight), 0.5, -0.5, 0, 1]
    virtual = prepared(setting([1] * 4, 2), signal="virtual_bias", angle_on="head")
    assert set(virtual.extract(after, before)) == {"head_update"}


def test_angles_of_the_head_and_entropies_of_the_signal_make_the_distance() -> None:
    """By a loop over pairs of clients in float64, through what the server stores."""
    clients, lam, temperature = 5, 0.3, 0.2
    sampler = prepared(setting([1] * clients, 2), angle_on="head", temperature=temperature, lam=lam)
    generator = torch.Generator().manual_seed(0)
    steps = [
        (torch.randn(4, 3, generator=generator), 0.3 * torch.randn(4, generator=generator))
        for _ in range(clients)
    ]
    for client, (weight, bias) in enumerate(steps):
        after, before = moved_head(weight.tolist(), bias.tolist())
        extracted = sampler.extract(after, before)
        sampler.aggregate([PartUpdate(client, 1, {}, extracted)])
    heads = [torch.cat([weight.flatten(), bias]).double().numpy() for weight, bias in steps]
    entropies = [entropy(np.exp(bias.double().numpy() / temperature)) for _, bias in steps]
    expected = np.zeros((clients, clients))
    for u, k in itertools.permutations(range(clients), 2):
        lengths = math.sqrt((heads[u] @ heads[u]) * (heads[k] @ heads[k]))
        angle = math.acos(heads[u] @ heads[k] / lengths)
        expected[u, k] = lam * angle + (1 - lam) * abs(entropies[u] - entropies[k])
    found = distances_within(sampler._profiles(), lam)
    np.testing.assert_allclose(found, expected, atol=1e-5)


def test_the_angle_of_the_head_can_separate_clients_with_equal_signals() -> None:
    sampler = prepared(setting([1] * 4, 2), angle_on="head", lam=1.0)
    weights = torch.tensor([[1.0], [-1.0], [1.0], [-1.0]])
    for client in range(4):
        step = weights[client].repeat(4, 3).tolist()
        after, before = moved_head(step, [0.0] * 4)
        sampler.aggregate([PartUpdate(client, 1, {}, sampler.extract(after, before))])
    cohorts = {tuple(sampler.select(round)) for round in range(3, 21)}
    assert sampler.memberships[3].tolist() in ([0, 1, 0, 1], [1, 0, 1, 0])
    assert all(len(cohort) == 2 for cohort in cohorts)
    alike = prepared(setting([1] * 4, 2), lam=1.0)
    alike.select(3)
    assert alike.memberships[3].tolist() == [0, 0, 0, 0]


def test_head_updates_that_are_not_finite_are_ignored() -> None:
    sampler = prepared(setting([1] * 4, 2), angle_on="head")
    bad = {"signal": torch.ones(4), "head_update": torch.full((16,), math.inf)}
    sampler.aggregate([PartUpdate(1, 1, {}, bad)])
    assert not sampler.signals.any()
    assert not sampler.head_updates.any()


@pytest.mark.parametrize("head", ["etf", "prototype"])
def test_a_head_without_trained_weights_has_no_angle(head: str) -> None:
    with pytest.raises(InputError, match=r"sampler\.angle_on=head: this head has no trained and"):
        federate("sampler=hics", f"head={head}", "sampler.angle_on=head")


RELEASED = ["sampler.refresh=warm_up", "sampler.warm_up_order=client", "sampler.angle_on=head"]
SMALL = ["clients.count=8", "clients.per_round=4", "data.subset=300", "measure.personal=null"]


@pytest.mark.matrix
@pytest.mark.parametrize("engine", ["serial", "vectorized"])
def test_the_released_options_in_a_run_that_is_restarted(engine: str) -> None:
    run = ["sampler=hics", "sampler.signal=weight_rowmean", *RELEASED, *SMALL, f"engine={engine}"]
    whole = federate(*run, "rounds=6")
    sampler: Any = whole.sampler
    for round in (1, 2, 3):
        whole.run_round(round)
    resumed = federate(*run, "rounds=6")
    resumed.server.load_state_dict(through_a_file(whole.server.state_dict()))
    frozen = sampler.signals.clone()
    assert (sampler.head_updates[sampler.eligible].abs().amax(dim=1) > 0).all()
    for round in (4, 5, 6):
        assert whole.run_round(round).metrics["sampler/clusters"] > 0
        resumed.run_round(round)
    again: Any = resumed.sampler
    assert torch.equal(sampler.signals, frozen)
    assert torch.equal(again.signals, frozen)
    assert torch.equal(again.head_updates, sampler.head_updates)
    assert torch.equal(again.times_chosen, sampler.times_chosen)
    assert all(torch.equal(w, resumed.server.weights[n]) for n, w in whole.server.weights.items())


def test_the_history_has_the_clusters_of_clients_with_data_and_minus_one_for_the_others() -> None:
    signals = torch.zeros(6, 4)
    signals[1, 1] = signals[3, 1] = 5.0  # entropy 0; clients 4 and 5: ln 4
    sampler = prepared(setting([0, 2, 0, 3, 1, 4], 2), clusters=2)
    send(sampler, signals, [1, 3, 4, 5])
    sampler.select(3)
    assert sampler.memberships[3].tolist() == [-1, 0, -1, 0, 1, 1]
    assert sampler.memberships[3].dtype == torch.int32
    assert sampler.metrics()["sampler/clusters"] == 2
    sampler.select(1)  # without clusters: the number does not stay
    assert "sampler/clusters" not in sampler.metrics()
    assert set(sampler.memberships) == {3}


@pytest.mark.parametrize("as_mask", [True, False])
def test_classes_that_are_not_counted_yet_are_counted_for_these_clients_only(as_mask: bool) -> None:
    counts = torch.tensor([[4, 0, 0, 0], [2, 2, 0, 0], [0, 0, 9, 0], [1, 1, 1, 1], [3, 0, 0, 1]])
    asked: list[list[int]] = []

    def count(clients: Tensor) -> Tensor:
        asked.append(clients.tolist())
        return counts[clients]

    about = Setting(
        *(0, 20, 4, 3, 5, 2),
        Clients(counts.sum(dim=1), count=count),
        MODEL,
    )
    sampler = prepared(about)
    send(sampler, random_signals(5), [1, 3])
    for _ in range(2):
        chosen = torch.tensor([False, True, False, True, False])
        true, estimated = sampler._entropies(chosen if as_mask else torch.tensor([1, 3]))
        assert true.tolist() == pytest.approx([math.log(2), math.log(4)])
        shares = torch.softmax(random_signals(5)[[1, 3]].double() / 0.1, dim=1)
        assert estimated.tolist() == pytest.approx([entropy(row) for row in shares.tolist()])
    assert asked == [[1, 3]]
    mixed = torch.tensor([True, True, False, False, True])
    true, _ = sampler._entropies(mixed if as_mask else torch.tensor([0, 1, 4]))
    assert true.tolist() == pytest.approx([0, math.log(2), entropy([3, 1])])
    assert asked == [[1, 3], [0, 4]]


# Large populations.


def test_the_history_of_many_clients_stays_small() -> None:
    clients = 1234
    sampler = prepared(setting([1] * clients, 5), exact_up_to=10, landmarks=20)
    send(sampler, random_signals(clients), list(range(clients)))
    sampler.select(300)
    assert sampler.shown.tolist() == list(range(0, clients, 3))
    assert len(sampler.memberships[300]) == len(sampler.shown) <= 500


# Whole runs.


@pytest.mark.slow
@pytest.mark.parametrize("head", ["linear", "cosine", "etf", "prototype"])
def test_every_head_runs(head: str) -> None:
    federation = federate(
        "sampler=hics",
        f"head={head}",
        "partition=multi_alpha",
        "clients.count=8",
        "clients.per_round=4",
        "local.epochs=1",
        "measure.personal=null",
        "rounds=3",
    )
    metrics: list[dict[str, float]] = [federation.run_round(round).metrics for round in (1, 2, 3)]
    sampler: Any = federation.sampler
    assert isinstance(sampler.source, WeightUpdate if head == "linear" else ClassCounts)
    assert sampler.times_chosen.sum() == len(sampler.eligible) + 4
    assert (sampler.signals[sampler.eligible].abs().amax(dim=1) > 0).all()
    assert "sampler/clusters" not in metrics[1]
    assert 1 <= metrics[2]["sampler/clusters"] <= 4
    rho = metrics[2]["sampler/entropy_spearman"]
    assert -1 <= rho <= 1
    assert head == "linear" or rho == pytest.approx(1)
    figures = sampler.figures({}, Description("digits", (1, 8, 8), tuple("0123456789")))
    assert set(figures) == {
        "sampler/times_chosen",
        "sampler/entropy",
        "sampler/entropy_bars",
        "sampler/membership",
    }


def test_a_client_with_one_class_is_told_from_a_mixed_one_at_any_length() -> None:
    one, mixed = torch.tensor([3.0, -1.0, -1.0, -1.0]), torch.tensor([1.0, 1.0, -1.0, -1.0])
    signals = torch.stack([one, mixed, 1e-4 * one, 1e-4 * mixed])
    found = {}
    for scale in ("fixed", "client"):
        sampler = prepared(setting([1] * 4, 2), scale=scale)
        send(sampler, signals, [0, 1, 2, 3])
        found[scale] = sampler._profiles().entropies
    assert found["client"][:2] == pytest.approx([0, math.log(2)], abs=1e-3)
    assert found["client"][2:] == pytest.approx(found["client"][:2])
    assert found["fixed"][2:] == pytest.approx([math.log(4)] * 2, abs=1e-3)


def test_class_counts_that_arrive_give_exact_entropies_and_others_the_largest() -> None:
    """By scipy's entropy; clients 0 and 3 have not sent anything yet."""
    counts = torch.tensor([[0.0, 0, 0, 0], [3, 3, 0, 0], [9, 0, 0, 0], [0, 0, 0, 0], [5, 1, 0, 2]])
    sampler = prepared(setting([1] * 5, 2), signal="class_counts", temperature=1e-3)
    send(sampler, counts, [1, 2, 4])
    expected = [math.log(4), math.log(2), 0, math.log(4), entropy([5, 1, 2])]
    assert sampler._profiles().entropies.tolist() == pytest.approx(expected, abs=1e-12)


def test_auto_says_when_it_means_class_counts(caplog: pytest.LogCaptureFixture) -> None:
    about = setting([1] * 5, 2)
    with caplog.at_level(logging.INFO):
        prepared(about)
        prepared(replace(about, model=Model({})), signal="class_counts")
        assert not caplog.records
        prepared(replace(about, model=Model({})))
    assert "sampler.temperature and sampler.scale have no effect" in caplog.text


@pytest.mark.parametrize(
    ("overrides", "warned"),
    [
        (["sampler=hics", "sampler.scale=client"], True),
        (["sampler=hics", "sampler.scale=client", "sampler.signal=class_counts"], False),
        (["sampler=hics"], False),
        (["sampler=hics_scale_free"], False),
    ],
    ids=str,
)
def test_a_temperature_that_is_too_small_for_unit_vectors_is_warned_of(
    overrides: list[str], warned: bool, caplog: pytest.LogCaptureFixture
) -> None:
    federate(*overrides, "aggregator=uniform")
    assert ("use sampler.temperature=0.2" in caplog.text) == warned


EXCLUDES = ["head=adapted_linear", "head.missing=exclude"]


@pytest.mark.parametrize(
    ("overrides", "warned"),
    [
        (["algorithm=fedrod"], True),
        (["algorithm=fedlc"], True),
        (["algorithm=fedgc", "sampler.signal=bias"], True),
        (["algorithm=fedrod", "sampler.signal=class_counts"], False),
        (["algorithm=fedrod", "sampler.signal=virtual_bias"], False),
        (["algorithm=fedavg"], False),
        (EXCLUDES, True),
        ([*EXCLUDES, "sampler.signal=virtual_bias"], True),
        ([*EXCLUDES, "sampler.signal=class_counts"], False),
    ],
    ids=str,
)
def test_updates_that_a_single_class_makes_zero_are_warned_of(
    overrides: list[str], warned: bool, caplog: pytest.LogCaptureFixture
) -> None:
    plan(compose("sampler=hics", "aggregator=uniform", *overrides))
    assert ("a client with a single class is zero" in caplog.text) == warned


@pytest.mark.parametrize("signal", ["bias", "virtual_bias"])
def test_such_a_client_looks_balanced_by_its_bias_but_not_by_a_virtual_one(signal: str) -> None:
    """Ten clients with one class each; 5e-4 of weight decay moves a bias a little."""
    words = ["algorithm=fedlc", "partition=shards", "partition.classes_per_client=1", "rounds=1"]
    words += ["clients.count=10", "clients.per_round=10", "aggregator=uniform", "sampler=hics"]
    federation = federate(*words, f"sampler.signal={signal}")
    federation.run_round(1)
    sampler: Any = federation.sampler
    assert sampler.true_entropies.tolist() == [0] * 10
    shares = sampler._profiles().entropies / math.log(10)
    assert (shares > 0.99).all() if signal == "bias" else (shares < 0.1).all()


@pytest.mark.matrix
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_the_estimate_orders_balanced_above_imbalanced_clients(seed: int) -> None:
    """Digits, five kinds of clients, 20 rounds: five of 20 a round, as HiCS chooses them.

    Full batches, so that every client takes the same number of steps: the sharpness of the softmax
    grows with the length of the update, and with it the estimate of a client with little data
    would be too high.
    """
    federation = federate(
        "sampler=hics",
        "sampler.temperature=0.1",
        "partition=multi_alpha",
        f"seed={seed}",
        "clients.per_round=5",
        "local.batch_size=2000",
        "optimizer.lr=0.02",
        "optimizer.momentum=0",
        "optimizer.weight_decay=0",
        "measure.personal=null",
        "measure.global.every=20",
        "rounds=20",
    )
    for round in range(1, 21):
        metrics = federation.run_round(round).metrics
    assert metrics["global/accuracy"] > 0.2  # trained: chance is 0.1
    assert metrics["sampler/entropy_spearman"] >= 0.8


# The oracle.

COUNTS = torch.tensor([[9, 0, 0, 0], [3, 3, 0, 0], [1, 1, 1, 1], [0, 0, 0, 0], [5, 1, 0, 2]])


def oracle(**options: Any) -> HiCS:
    about = Setting(0, 20, 4, 3, 5, 2, Clients.of(COUNTS), MODEL)
    return prepared(about, signal="labels", **options)


def test_the_oracle_knows_the_labels_before_anything_arrives() -> None:
    """Eq. 9 with true entropies, and the angles of class counts, by a loop over pairs."""
    lam = 0.3
    sampler = oracle(lam=lam, temperature=1e-3)
    held = [row for row in COUNTS.double().tolist() if sum(row)]
    entropies = [entropy(row) for row in held]
    np.testing.assert_allclose(sampler._profiles().entropies, entropies, atol=1e-12)
    expected = np.zeros((4, 4))
    for u, k in itertools.permutations(range(4), 2):
        inner = sum(a * b for a, b in zip(held[u], held[k], strict=True))
        lengths = math.hypot(*held[u]) * math.hypot(*held[k])
        gap = abs(entropies[u] - entropies[k])
        expected[u, k] = lam * math.acos(min(1, inner / lengths)) + (1 - lam) * gap
    np.testing.assert_allclose(distances_within(sampler._profiles(), lam), expected, atol=1e-6)


def test_the_oracle_takes_nothing_from_updates() -> None:
    sampler = oracle()
    after, before = moved_head([[1.0] * 3] * 4, [1.0] * 4)
    assert sampler.extract(after, before) == {}
    sampler.aggregate([PartUpdate(k, 1, {}) for k in (0, 1, 2, 4)])
    assert torch.equal(sampler.signals, COUNTS.float())
    assert sampler.metrics()["sampler/entropy_spearman"] == pytest.approx(1)
    assert sampler.temperature == OPTIONS["temperature"]


def test_nothing_refreshes_the_labels() -> None:
    assert oracle().unread.keys() == {"sampler.refresh"}
    assert not oracle(angle_on="head").unread


def test_the_oracle_can_take_angles_from_the_head() -> None:
    first, second = (moved_head([[x] * 3] * 4, [x] * 4) for x in (1.0, 2.0))
    for refresh, expected in (("always", 2.0), ("warm_up", 1.0)):
        sampler = oracle(angle_on="head", refresh=refresh)
        for after, before in (first, second):
            extracted = sampler.extract(after, before)
            sampler.aggregate([PartUpdate(0, 1, {}, extracted)])
        assert (sampler.head_updates[0] == expected).all()
        assert torch.equal(sampler.signals, COUNTS.float())


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["serial", "vectorized"])
def test_the_oracle_in_a_run_that_is_restarted(engine: str) -> None:
    """Five clusters, for any head, with the bytes of random cohorts; the same after a restart."""
    run = ["sampler=hics_oracle", "head=etf", "partition=multi_alpha", *SMALL, "rounds=4"]
    whole, resumed = (federate(*run, f"engine={engine}") for _ in range(2))
    plain = federate(*run[1:], "sampler=random")
    for round in (1, 2, 3):
        metrics = whole.run_round(round).metrics
    assert 1 <= metrics["sampler/clusters"] <= 5
    message = whole.server.broadcast(4)
    assert message.nbytes == plain.server.broadcast(1).nbytes
    (update,) = whole.engine.train([0], message)
    assert update.nbytes == message.nbytes
    resumed.server.load_state_dict(through_a_file(whole.server.state_dict()))
    for federation in (whole, resumed):
        federation.run_round(4)
    for name, weight in whole.server.weights.items():
        assert torch.equal(weight, resumed.server.weights[name])
