import io
import itertools
import logging
import math
from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
from federations import federate
from sklearn.cluster import AgglomerativeClustering
from sklearn.metrics import adjusted_rand_score
from torch import Tensor

from fedexp.core.description import Description
from fedexp.core.forward import Forward
from fedexp.core.messages import Update
from fedexp.core.part import Setting
from fedexp.errors import InputError
from fedexp.samplers.clusters import nearest_clusters, ward
from fedexp.samplers.heterogeneity import draw_cohort, label_entropy
from fedexp.samplers.hics import (
    HiCS,
    cluster_probabilities,
    estimated_entropy,
    pairwise_distance,
)
from fedexp.samplers.signals import VirtualBias, WeightUpdate

BIAS = "head.linear.bias"
SHAPES = {"head.linear.weight": torch.Size([4, 3]), BIAS: torch.Size([4])}
OPTIONS: dict[str, Any] = {
    "signal": "auto",
    "temperature": 0.1,
    "lam": 0.1,
    "gamma_0": 4.0,
    "clusters": None,
    "linkage_on": "rows",
    "exact_up_to": 2000,
    "landmarks": 1000,
    "refresh": "always",
    "warm_up_order": "random",
    "angle_on": "signal",
}


def setting(sizes: list[int], per_round: int, rounds: int = 20, seed: int = 0) -> Setting:
    """Clients with so many samples each, all of class ``client % 4``."""
    counts = torch.zeros(len(sizes), 4, dtype=torch.int64)
    counts[torch.arange(len(sizes)), torch.arange(len(sizes)) % 4] = torch.tensor(sizes)
    return Setting(
        seed, rounds, 4, 3, len(sizes), per_round, counts, SHAPES, shared=frozenset(SHAPES)
    )


def prepared(about: Setting, **options: Any) -> HiCS:
    sampler = HiCS(**OPTIONS | options)
    sampler.setup(about)
    return sampler


def tell(sampler: HiCS, signals: Tensor, clients: list[int]) -> None:
    """The updates of these clients come in."""
    sampler.aggregate(
        [Update(k, 1, {}, {"sampler": {"signal": signals[k]}}, draws=1) for k in clients]
    )


def random_signals(clients: int, seed: int = 0) -> Tensor:
    return 0.3 * torch.randn(clients, 4, generator=torch.Generator().manual_seed(seed))


# The pure functions.


def entropy_by_hand(row: np.ndarray, temperature: float) -> float:
    weights = [math.exp((x - max(row)) / temperature) for x in row]
    return -sum(w / sum(weights) * math.log(w / sum(weights)) for w in weights if w > 0)


def test_entropy_by_hand() -> None:
    thirds = 0.5 * torch.log(torch.tensor([[1.0, 1.0, 2.0]]))  # softmax(./0.5) = 1/4, 1/4, 1/2
    assert estimated_entropy(thirds, 0.5).item() == pytest.approx(1.5 * math.log(2))
    assert estimated_entropy(torch.zeros(2, 7), 0.01).tolist() == pytest.approx([math.log(7)] * 2)
    sharp = torch.tensor([[1000.0, 0.0, -1000.0]])
    assert estimated_entropy(sharp, 0.0015).item() == 0.0


def test_distance_against_a_loop_in_float64() -> None:
    updates = random_signals(6).double()
    lam, temperature = 0.3, 0.2
    rows = updates.numpy()
    expected = np.zeros((6, 6))
    for u in range(6):
        for k in range(6):
            cosine = rows[u] @ rows[k] / math.sqrt((rows[u] @ rows[u]) * (rows[k] @ rows[k]))
            gap = abs(entropy_by_hand(rows[u], temperature) - entropy_by_hand(rows[k], temperature))
            expected[u, k] = lam * math.acos(min(1.0, max(-1.0, cosine))) + (1 - lam) * gap
    found = pairwise_distance(updates, temperature, lam)
    np.testing.assert_allclose(found, expected, atol=1e-7)
    assert torch.equal(found, found.T)
    assert torch.equal(found.diagonal(), torch.zeros(6, dtype=torch.float64))


def test_distances_of_zero_and_parallel_updates() -> None:
    zero, one = torch.zeros(4), torch.tensor([0.1, -0.2, 0.3, 0.1])
    found = pairwise_distance(torch.stack([zero, one, 3 * one, -one, zero]), 0.5)
    entropy = [entropy_by_hand((f * one).double().numpy(), 0.5) for f in (0, 1, 3, -1)]
    assert found[0, 4] == pytest.approx(0.1 * math.pi / 2)
    assert found[0, 1] == pytest.approx(0.1 * math.pi / 2 + 0.9 * (entropy[0] - entropy[1]))
    assert found[1, 2] == pytest.approx(0.9 * (entropy[1] - entropy[2]), abs=1e-6)
    assert found[1, 3] == pytest.approx(0.1 * math.pi + 0.9 * abs(entropy[1] - entropy[3]))
    assert not found.isnan().any()


def test_cluster_probabilities_by_hand() -> None:
    entropies = torch.tensor([1.0, 3.0, 0.5, 0.0])
    clusters = torch.tensor([5, 5, 2, 9])  # means 2, 0.5, 0 in the order 5, 2, 9
    weights = [math.exp(0.7 * mean) for mean in (0.5, 2.0, 0.0)]
    found = cluster_probabilities(entropies, clusters, 0.7)
    assert found.tolist() == pytest.approx([w / sum(weights) for w in weights])
    assert cluster_probabilities(entropies, clusters, 0.0).tolist() == pytest.approx([1 / 3] * 3)
    assert cluster_probabilities(entropies, clusters, 1e6).tolist() == [0.0, 1.0, 0.0]


def test_label_entropy() -> None:
    found = label_entropy(torch.tensor([[5, 5, 0], [7, 0, 0], [2, 1, 1], [0, 0, 0]]))
    assert found.tolist() == pytest.approx([math.log(2), 0, 1.5 * math.log(2), 0])


# Clusters.


@pytest.mark.parametrize("linkage_on", ["rows", "condensed"])
def test_ward_finds_groups_that_are_far_apart(linkage_on: Any) -> None:
    place = torch.tensor([0.0, 10.0, 0.1, 20.3, 10.1, 20.0, 0.2]).unsqueeze(1)
    labels = ward(torch.cdist(place, place), 3, linkage_on).tolist()
    assert sorted(set(labels)) == [0, 1, 2]
    assert labels[0] == labels[2] == labels[6]
    assert labels[1] == labels[4]
    assert labels[3] == labels[5]


def test_ward_of_few_or_equal_points() -> None:
    assert ward(torch.zeros(1, 1), 3, "rows").tolist() == [0]
    assert ward(torch.zeros(3, 3), 3, "rows").tolist() == [0, 1, 2]
    assert ward(torch.zeros(5, 5), 3, "rows").tolist() == [0] * 5


@pytest.mark.filterwarnings("ignore:.*uncondensed")
@pytest.mark.parametrize("linkage_on", ["rows", "condensed"])
def test_ward_is_that_of_another_library(linkage_on: Any) -> None:
    """Scikit-learn knows points only: those whose distances are given, or the rows themselves."""
    points = torch.randn(30, 2, generator=torch.Generator().manual_seed(0))
    distances = torch.cdist(points, points)
    theirs = AgglomerativeClustering(5, linkage="ward")
    expected = theirs.fit_predict(distances if linkage_on == "rows" else points)
    found = ward(distances, 5, linkage_on)
    assert adjusted_rand_score(expected, found) == 1
    other: Any = "condensed" if linkage_on == "rows" else "rows"
    assert adjusted_rand_score(expected, ward(distances, 5, other)) < 1


def test_nearest_is_by_the_mean_distance_to_the_members() -> None:
    # Of the clusters {0, 2} and {1}: means 2.5 against 2, then 2.5 against 3.
    distances = torch.tensor([[1.0, 2.0, 4.0], [1.0, 3.0, 4.0]])
    assert nearest_clusters(distances, torch.tensor([0, 1, 0])).tolist() == [1, 0]


# The draw.


def share(cohorts: list[list[int]], event: set[int]) -> float:
    return sum(set(cohort) == event for cohort in cohorts) / len(cohorts)


def test_odds_of_one_client_are_pi_times_its_share_of_samples() -> None:
    entropies, clusters = torch.tensor([0.0, 0.0, 1.0]), torch.tensor([0, 0, 1])
    sizes, generator = torch.tensor([1, 3, 10]), np.random.default_rng(0)
    pi = cluster_probabilities(entropies, clusters, 1.0)
    draws = [draw_cohort(entropies, clusters, sizes, 1.0, 1, generator)[0] for _ in range(2000)]
    visits = Counter(draws)
    for client, expected in enumerate([pi[0] / 4, pi[0] * 3 / 4, pi[1]]):
        p = float(expected)
        assert abs(visits[client] - 2000 * p) < 4 * (2000 * p * (1 - p)) ** 0.5


def test_an_exhausted_cluster_drops_out_and_the_others_share_its_odds() -> None:
    # Three clusters: {0}, {1}, {2, 3} with pi = a, b, c; two draws.
    entropies, clusters = torch.tensor([2.0, 1.0, 0.0, 0.0]), torch.tensor([0, 1, 2, 2])
    sizes, generator = torch.tensor([1, 1, 1, 3]), np.random.default_rng(1)
    a, b, c = cluster_probabilities(entropies, clusters, 1.0).tolist()
    cohorts = [draw_cohort(entropies, clusters, sizes, 1.0, 2, generator) for _ in range(2000)]
    expected = {
        (0, 1): a * b / (b + c) + b * a / (a + c),
        (0, 3): a * c / (b + c) * 3 / 4 + c * 3 / 4 * a,
        (2, 3): c * c,
    }
    for event, p in expected.items():
        assert abs(share(cohorts, set(event)) - p) < 4 * (p * (1 - p) / 2000) ** 0.5


def test_everyone_can_be_drawn_even_where_pi_vanishes() -> None:
    entropies, clusters = torch.tensor([0.0, 1.0, 2.0, 2.0]), torch.tensor([0, 1, 2, 2])
    cohort = draw_cohort(entropies, clusters, torch.ones(4), 1e5, 4, np.random.default_rng(0))
    assert set(cohort[:2]) == {2, 3}
    assert cohort[2:] == [1, 0]


# The sampler.


def test_warm_up_visits_everyone_with_data_exactly_once() -> None:
    sampler = prepared(setting([3, 0, 5, 1, 9, 2, 2, 0, 7], 3))
    cohorts = [sampler.select(round) for round in (1, 2, 3)]
    assert [len(cohort) for cohort in cohorts] == [3, 3, 1]
    assert sorted(itertools.chain(*cohorts)) == [0, 2, 3, 4, 5, 6, 8]
    other = prepared(setting([3, 0, 5, 1, 9, 2, 2, 0, 7], 3, seed=1))
    assert [other.select(round) for round in (1, 2, 3)] != cohorts


@pytest.mark.parametrize("linkage_on", ["rows", "condensed"])
def test_after_warm_up_a_cohort_is_k_different_clients_with_data(linkage_on: str) -> None:
    sampler = prepared(setting([3, 0, 5, 1, 9, 2, 2, 0, 7], 3), linkage_on=linkage_on)
    tell(sampler, random_signals(9), [0, 2, 3, 4, 5, 6])  # 8 was lost: its signal is zero
    for round in range(4, 25):  # also beyond T = 20
        cohort = sampler.select(round)
        assert len(set(cohort)) == len(cohort) == 3
        assert set(cohort) <= {0, 2, 3, 4, 5, 6, 8}
        assert sampler.select(round) == cohort


def test_a_cohort_depends_on_seed_round_and_signals_alone() -> None:
    first, other = (prepared(setting([1] * 30, 5, rounds=1000, seed=seed)) for seed in (0, 1))
    again = prepared(setting([1] * 30, 5, rounds=1000))
    for sampler in (first, other, again):
        tell(sampler, random_signals(30), list(range(30)))
    assert again.select(9) == first.select(9)  # whatever was drawn in between
    assert len({tuple(first.select(round)) for round in range(7, 17)}) > 5
    assert first.select(9) == again.select(9)
    assert other.select(9) != first.select(9)


def test_few_clients_all_take_part() -> None:
    sampler = prepared(setting([0, 4, 0, 1], 3))
    assert sampler.select(1) == [1, 3]
    tell(sampler, random_signals(4), [1, 3])
    assert sampler.select(2) == [1, 3]
    assert prepared(setting([0, 4], 2)).select(2) == [1]


def test_high_entropy_is_preferred_at_first_and_no_longer_in_the_last_round() -> None:
    """Half of the clients push one class, half none; two clusters, and gamma_t falls to zero."""
    signals = torch.zeros(20, 4)
    signals[::2, 0] = 1.0
    sampler = prepared(setting([1] * 20, 4, rounds=1000), clusters=2, gamma_0=3.0)
    tell(sampler, signals, list(range(20)))
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
    tell(sampler, signals, list(range(6)))
    sampler.select(3)
    assert sampler.memberships[3].tolist() == [0, 0, 1, 1, 2, 2]


def test_a_restart_goes_on_with_the_same_cohorts() -> None:
    about = setting([3, 0, 5, 1, 9, 2, 2, 4, 7], 2)
    first, second = prepared(about), prepared(about)
    for round in range(1, 8):
        tell(first, random_signals(9, round), first.select(round))
    file = io.BytesIO()
    torch.save(first.server_state(), file)
    file.seek(0)
    second.load_server_state(torch.load(file, weights_only=True))
    assert torch.equal(second.times_chosen, first.times_chosen)
    for round in range(8, 15):
        cohort = first.select(round)
        assert second.select(round) == cohort
        for sampler in (first, second):
            tell(sampler, random_signals(9, round), cohort)
    assert first.metrics() == second.metrics()
    assert set(first.memberships) == set(second.memberships) == set(range(5, 15))
    assert set(first.server_state()) == {"times_chosen", "signals", "memberships"}


def test_a_kept_state_is_a_snapshot() -> None:
    sampler = prepared(setting([1] * 4, 2))
    state = sampler.server_state()
    tell(sampler, random_signals(4), [0, 1, 2, 3])
    assert state["times_chosen"].sum() == 0
    assert state["signals"].abs().sum() == 0


def test_a_signal_that_is_not_finite_is_not_taken_in() -> None:
    sampler = prepared(setting([1] * 4, 2))
    tell(sampler, random_signals(4), [0, 1, 2, 3])
    known = sampler.signals.clone()
    tell(sampler, torch.full((4, 4), math.nan), [0, 2])
    assert torch.equal(sampler.signals, known)
    assert len(sampler.select(3)) == 2


def test_spearman_is_absent_where_it_is_not_defined() -> None:
    sampler = prepared(setting([1] * 4, 2))  # every client has one class: all entropies are 0
    tell(sampler, random_signals(4), [0, 1])
    assert sampler.metrics() == {}


# Many clients.


def three_groups(clients: int) -> tuple[Tensor, list[int]]:
    """Signals around three far directions of entropies 0, ln 2, ln 4, and who is in which group."""
    groups = torch.arange(clients) % 3
    centres = torch.tensor([[4.0, 0, 0, 0], [0, 2.0, 2.0, 0], [0.1, 0.1, 0.1, 0.1]])
    return centres[groups] + 0.01 * random_signals(clients), groups.tolist()


@pytest.mark.parametrize("linkage_on", ["rows", "condensed"])
def test_a_sketch_finds_what_the_exact_clustering_finds(
    linkage_on: str, caplog: pytest.LogCaptureFixture
) -> None:
    signals, groups = three_groups(300)
    about = setting([1] * 300, 3, rounds=1000)
    with caplog.at_level(logging.WARNING):
        exact = prepared(about, linkage_on=linkage_on, exact_up_to=300)
        assert not caplog.records
        sketch = prepared(about, linkage_on=linkage_on, exact_up_to=299, landmarks=30)
        for sampler in (exact, sketch):
            tell(sampler, signals, list(range(300)))
        for round in (101, 102):
            assert sketch.select(round) == exact.select(round)
            for sampler in (exact, sketch):
                assert sampler.memberships[round].tolist() == groups
    assert len(caplog.records) == 1  # for two rounds
    assert "clusters 30 of them" in caplog.text


def test_blocks_leave_no_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    about = setting([1] * 100, 5)
    sampler = prepared(about, exact_up_to=10, landmarks=20)
    tell(sampler, random_signals(100), list(range(100)))
    sampler.select(21)
    whole = sampler.memberships[21]
    monkeypatch.setattr("fedexp.samplers.client_clusters._BLOCK", 7)
    sampler.select(21)
    assert torch.equal(sampler.memberships[21], whole)


def test_the_history_of_many_clients_stays_small() -> None:
    clients = 1234
    sampler = prepared(setting([1] * clients, 5), exact_up_to=10, landmarks=20)
    tell(sampler, random_signals(clients), list(range(clients)))
    sampler.select(300)
    assert sampler.shown.tolist() == list(range(0, clients, 3))
    assert len(sampler.memberships[300]) == len(sampler.shown) <= 500


# Signals.


def test_a_bias_and_a_weight_matrix_are_read_from_the_update() -> None:
    before = {"head.linear.weight": torch.ones(4, 3), BIAS: torch.tensor([1.0, 2.0, 3.0, 4.0])}
    after = {
        "head.linear.weight": torch.ones(4, 3) + torch.tensor([[3.0], [0.0], [-3.0], [1.0]]),
        BIAS: torch.tensor([1.5, 2.0, 2.0, 4.0]),
    }
    after["head.linear.weight"][0, 0] += 3
    update, about = Update(0, 1, after), setting([1] * 4, 2)
    for signal, expected in (
        ("auto", [0.5, 0, -1, 0]),
        ("bias", [0.5, 0, -1, 0]),
        ("weight_rowmean", [4, 0, -3, 1]),
    ):
        found = prepared(about, signal=signal).extract(update, before)["signal"]
        assert found.tolist() == expected
    assert prepared(about, signal="virtual_bias").extract(update, before) == {}


def test_a_signal_read_from_the_weights_costs_no_traffic() -> None:
    batch = Forward(torch.zeros(2, 3), torch.zeros(2, 4), torch.tensor([0, 1]))
    client: Any = None
    for signal in ("auto", "bias", "weight_rowmean"):
        sampler = prepared(setting([1] * 4, 2), signal=signal)
        assert sampler.measure(batch) == {}
        assert sampler.report(client, {}) == {}


def test_what_is_measured_is_minus_the_gradient_for_a_bias() -> None:
    logits = torch.randn(5, 4, generator=torch.Generator().manual_seed(0))
    targets = torch.tensor([0, 3, 3, 1, 0])
    bias = torch.zeros(4, requires_grad=True)
    torch.nn.functional.cross_entropy(logits + bias, targets).backward()
    sampler = prepared(setting([1] * 4, 2), signal="virtual_bias")
    found = sampler.measure(Forward(torch.zeros(5, 3), logits, targets))["residual"]
    assert bias.grad is not None
    torch.testing.assert_close(found, -bias.grad)
    # Filling a batch up changes nothing, whatever it is filled up with.
    filled = torch.cat([logits, torch.full((2, 4), math.nan)])
    real = torch.tensor([1, 1, 1, 1, 1, 0, 0])
    padded = Forward(torch.zeros(7, 3), filled, torch.cat([targets, targets[:2]]), real)
    torch.testing.assert_close(sampler.measure(padded)["residual"], found)


def test_classes_left_out_of_the_softmax_have_no_signal() -> None:
    logits = torch.tensor([[1.0, -math.inf, 1.0, -math.inf]])
    sampler = prepared(setting([1] * 4, 2), signal="virtual_bias")
    found = sampler.measure(Forward(torch.zeros(1, 3), logits, torch.tensor([2])))["residual"]
    assert found.tolist() == [-0.5, 0, 0.5, 0]


def test_virtual_bias_is_the_bias_update_of_plain_sgd() -> None:
    federation = federate(
        "sampler=hics",
        "sampler.signal=virtual_bias",
        "clients.count=4",
        "local.epochs=2",
        "optimizer.momentum=0",
        "optimizer.weight_decay=0",
        "optimizer.round_decay=0.9",
        "clients.per_round=2",
    )
    message = federation.server.broadcast(3)
    for update in federation.engine.train([1, 2], message):
        signal = update.extras["sampler"]["signal"]
        step = update.weights[BIAS] - message.weights[BIAS]
        assert step.abs().max() > 0.01
        torch.testing.assert_close(signal, step, atol=1e-5, rtol=1e-4)
        assert signal.numel() == 10


@pytest.mark.parametrize(
    ("head", "signal"),
    [("etf", "bias"), ("cosine", "bias"), ("etf", "weight_rowmean"), ("prototype", "bias")],
)
def test_a_signal_that_the_head_lacks_is_an_error(head: str, signal: str) -> None:
    with pytest.raises(InputError, match=rf"sampler\.signal={signal}: this head has no"):
        federate("sampler=hics", f"head={head}", f"sampler.signal={signal}")


def test_a_private_bias_is_not_read() -> None:
    about = setting([1] * 4, 2)
    private = Setting(**vars(about) | {"shared": frozenset({"head.linear.weight"})})
    assert isinstance(prepared(private).source, VirtualBias)
    with pytest.raises(InputError, match="trained and shared"):
        prepared(private, signal="bias")


def test_fewer_landmarks_than_clusters_are_an_error() -> None:
    with pytest.raises(InputError, match=r"sampler\.landmarks=3: must be at least .* 4"):
        prepared(setting([1] * 9, 4), exact_up_to=8, landmarks=3)
    prepared(setting([1] * 9, 4), exact_up_to=9, landmarks=3)


# Whole runs.


@pytest.mark.parametrize("head", ["linear", "cosine", "etf", "prototype"])
def test_every_head_runs(head: str) -> None:
    federation = federate(
        "sampler=hics",
        f"head={head}",
        "partition=multi_alpha",
        "clients.count=8",
        "clients.per_round=4",
        "local.epochs=1",
        "evaluation.personal=off",
        "rounds=3",
    )
    metrics: list[dict[str, float]] = [federation.run_round(round).metrics for round in (1, 2, 3)]
    sampler: Any = federation.sampler
    assert isinstance(sampler.source, WeightUpdate if head == "linear" else VirtualBias)
    assert sampler.times_chosen.sum() == len(sampler.eligible) + 4
    assert (sampler.signals[sampler.eligible].abs().amax(dim=1) > 0).all()
    assert "sampler/clusters" not in metrics[1]
    assert 1 <= metrics[2]["sampler/clusters"] <= 4
    assert -1 <= metrics[2]["sampler/entropy_spearman"] <= 1
    figures = sampler.figures({}, Description("digits", (1, 8, 8), tuple("0123456789")))
    assert set(figures) == {
        "sampler/times_chosen",
        "sampler/entropy",
        "sampler/entropy_bars",
        "sampler/membership",
    }


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
        "evaluation.personal=off",
        "evaluation.every=20",
        "rounds=20",
    )
    for round in range(1, 21):
        metrics = federation.run_round(round).metrics
    assert metrics["global/accuracy"] > 0.2  # trained: chance is 0.1
    assert metrics["sampler/entropy_spearman"] >= 0.8
