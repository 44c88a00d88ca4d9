from collections import Counter
from typing import Literal

import numpy as np
import pytest
import torch
from scipy.cluster.hierarchy import ClusterNode, linkage, to_tree
from scipy.spatial.distance import squareform
from scipy.stats import chisquare
from support.federations import federate

from fedexp.core.messages import PartUpdate
from fedexp.core.part import Clients, Model, Setting
from fedexp.samplers.clustered import (
    Clustered,
    bounded_clusters,
    draw,
    fill_in_order,
    sampling_distributions,
)
from fedexp.samplers.clusters import LinkageOn

TINY = ["clients.count=6", "clients.per_round=3", "data.subset=200", "local.epochs=1"]
both_linkages = pytest.mark.parametrize("linkage_on", ["rows", "condensed"])


def prepared(
    sizes: list[int],
    per_round: int,
    seed: int = 0,
    untrained: Literal["right", "zero"] = "right",
    rounds_by_size: int = 0,
) -> Clustered:
    sampler = Clustered("condensed", untrained, rounds_by_size)
    counts, shapes = torch.tensor(sizes).unsqueeze(1), {"w": torch.Size([2])}
    model = Model(shapes, frozenset({"w"}))
    sampler.setup(Setting(seed, 10, 1, 1, len(sizes), per_round, Clients.of(counts), model))
    return sampler


def move(sampler: Clustered, steps: list[list[float]]) -> None:
    """A round in which client k moves by steps[k]."""
    start = {"w": torch.tensor([7.0, -3.0])}
    weights = [{"w": start["w"] + torch.tensor(step)} for step in steps]
    extracts = [sampler.extract(each, start) for each in weights]
    sampler.aggregate([PartUpdate(k, 1, {}, each) for k, each in enumerate(extracts)])


def random_distances(n: int, generator: np.random.Generator) -> np.ndarray:
    return squareform(generator.uniform(0.1, 3, n * (n - 1) // 2))


def test_filling_in_order_by_hand() -> None:
    found = fill_in_order(np.array([1, 6, 2]), np.array([3, 2, 4]))
    assert found.tolist() == [[1, 0, 0], [2, 2, 2], [0, 0, 2]]


@both_linkages
def test_similar_clients_share_a_distribution(linkage_on: LinkageOn) -> None:
    far, near = 1.5, 0.1
    distances = np.array(
        [[0, far, near, far], [far, 0, far, near], [near, far, 0, far], [far, near, far, 0]]
    )
    distributions = sampling_distributions(distances, np.array([5, 5, 5, 5]), 2, linkage_on)
    assert distributions.tolist() == [[10, 0, 10, 0], [0, 10, 0, 10]]


@both_linkages
def test_smaller_clusters_go_where_there_is_most_room(
    linkage_on: LinkageOn,
) -> None:
    # K n_k = 8, 6, 4, 2 and a distribution holds 10: {2, 3} join, {1, 2, 3} would have 12.
    # {0} and {1} get one each; client 2 fills the room of 4 beside 1, client 3 that beside 0.
    distances = squareform([2.0, 2.0, 2.0, 0.3, 0.3, 0.1])
    distributions = sampling_distributions(distances, np.array([4, 3, 2, 1]), 2, linkage_on)
    assert distributions.tolist() == [[8, 0, 0, 2], [0, 6, 4, 0]]


@pytest.mark.parametrize(
    ("sizes", "num_draws", "expected"),
    [
        ([1, 8, 1], 3, [[0, 10, 0], [0, 10, 0], [3, 4, 3]]),
        ([2, 2, 2, 2], 4, [[8, 0, 0, 0], [0, 8, 0, 0], [0, 0, 8, 0], [0, 0, 0, 8]]),
        ([3], 1, [[3]]),
    ],
)
def test_a_large_client_fills_whole_distributions_alone(
    sizes: list[int], num_draws: int, expected: list[list[int]]
) -> None:
    found = sampling_distributions(1 - np.eye(len(sizes)), np.array(sizes), num_draws, "condensed")
    assert found.tolist() == expected


@both_linkages
def test_distributions_are_full_and_draws_unbiased_for_any_sizes(linkage_on: LinkageOn) -> None:
    generator = np.random.default_rng(0)
    for trial in range(150):
        n = int(generator.integers(1, 25))
        k = int(generator.integers(1, n + 1))
        sizes = generator.integers(1, 10, n) ** generator.integers(1, 5)
        distributions = sampling_distributions(random_distances(n, generator), sizes, k, linkage_on)
        assert distributions.shape == (k, n)
        assert distributions.min() >= 0, trial
        assert (distributions.sum(axis=1) == sizes.sum()).all()
        assert (distributions.sum(axis=0) == k * sizes).all()


def test_each_of_the_largest_clusters_has_a_distribution() -> None:
    generator = np.random.default_rng(1)
    for _ in range(30):
        distances, sizes = random_distances(30, generator), generator.integers(10, 20, 30)
        distributions = sampling_distributions(distances, sizes, 5, "condensed")
        clusters = bounded_clusters(distances, 5 * sizes, int(sizes.sum()), "condensed")
        largest = sorted(clusters, key=lambda c: (-sizes[c].sum(), c[0]))[:5]
        for row, cluster in zip(distributions, largest, strict=True):
            assert (row[cluster] == 5 * sizes[cluster]).all()


@pytest.mark.filterwarnings("ignore:The symmetric")  # the matrix is meant as points
def test_the_tree_is_cut_at_the_largest_nodes_within_the_limit() -> None:
    def within(node: ClusterNode, units: np.ndarray, limit: int) -> list[list[int]]:
        members = sorted(node.pre_order())
        if units[members].sum() <= limit:
            return [members]
        return [c for child in (node.left, node.right) for c in within(child, units, limit)]

    generator = np.random.default_rng(2)
    for _ in range(20):
        distances, units = random_distances(40, generator), generator.integers(1, 50, 40)
        limit = int(units.max() + generator.integers(200))
        for linkage_on, points in (("rows", distances), ("condensed", squareform(distances))):
            found = bounded_clusters(distances, units, limit, linkage_on)  # type: ignore[arg-type]
            root = to_tree(linkage(points, "ward"))
            assert sorted(c.tolist() for c in found) == sorted(within(root, units, limit))


def test_draws_follow_the_distributions() -> None:
    generator = np.random.default_rng(3)
    sizes = np.array([30, 1, 2, 3, 4, 5, 6, 7])
    distributions = sampling_distributions(random_distances(8, generator), sizes, 4, "condensed")
    rounds = 5000
    drawn = np.stack([draw(distributions, generator) for _ in range(rounds)])
    for row, column in zip(distributions, drawn.T, strict=True):
        seen = np.bincount(column, minlength=8)
        assert seen[row == 0].sum() == 0
        expected = rounds * row[row > 0] / row.sum()
        assert len(expected) == 1 or chisquare(seen[row > 0], expected).pvalue > 1e-3
    assert (distributions > 0).sum(axis=1).max() > 2  # some distribution has several clients


def test_over_many_rounds_a_client_is_drawn_in_proportion_to_its_samples() -> None:
    sizes = [9, 0, 1, 2, 3, 4, 5, 0, 6]
    sampler = prepared(sizes, 3)
    generator = np.random.default_rng(4)
    move(sampler, generator.normal(size=(9, 2)).tolist())
    rounds = 1000
    draws: Counter[int] = Counter()
    for round in range(rounds):
        cohort = sampler.select(round)
        assert len(cohort) == 3
        draws.update(cohort)
    for client, size in enumerate(sizes):
        expected = rounds * 3 * size / 30
        assert abs(draws[client] - expected) <= 4 * expected**0.5


def test_one_client_of_each_direction() -> None:
    sampler = prepared([5] * 6, 3)
    move(sampler, [[1, 0], [0, 1], [-1, 0], [9, 0.1], [0.01, 5], [-2, 0.01]])
    cohorts = {tuple(sampler.select(round)) for round in range(1, 100)}
    assert len(cohorts) == 2**3
    assert all({client % 3 for client in cohort} == {0, 1, 2} for cohort in cohorts)


def test_a_cohort_depends_on_seed_round_and_updates_alone() -> None:
    sizes = list(range(1, 31))
    first, again, other = (prepared(sizes, 6, seed) for seed in (0, 0, 1))
    first.select(1)
    assert first.select(7) == again.select(7)
    assert first.select(7) != first.select(8)
    assert first.select(7) != other.select(7)


def test_fewer_clients_with_data_than_places() -> None:
    sampler = prepared([0, 4, 0, 1], 3)
    cohorts = {tuple(sampler.select(round)) for round in range(1, 60)}
    assert cohorts == {(1, 1), (1, 3)}  # two draws, by size
    assert prepared([0, 4, 0], 2).select(1) == [1]


@pytest.mark.parametrize("head", ["linear", "etf"])
def test_two_rounds_cost_no_more_than_random_ones(head: str) -> None:
    federation = federate("sampler=clustered", "aggregator=uniform", f"head={head}", *TINY)
    sampler = federation.sampler
    assert isinstance(sampler, Clustered)
    for round in (1, 2):
        cohort = sampler.select(round)
        before = federation.server.weights
        sent = federation.server.broadcast(round).nbytes
        metrics = federation.run_round(round).metrics
        assert metrics["cost/download_bytes"] == len(set(cohort)) * sent
        assert metrics["cost/upload_bytes"] == len(set(cohort)) * sent
        assert "time/probe_s" not in metrics
        # the mean of the draws' updates is the global step
        step = sampler.flatten(federation.server.weights) - sampler.flatten(before)
        mean = torch.stack([sampler.updates[client] for client in cohort]).mean(dim=0)
        torch.testing.assert_close(step, mean, atol=1e-6, rtol=1e-4)
    assert sampler.times_chosen.sum() == 2 * 3


def test_untrained_clients_are_at_angle_zero_as_released() -> None:
    sampler = prepared([1] * 5, 2, untrained="zero")
    assert torch.equal(sampler.distances, torch.zeros(5, 5, dtype=torch.float64))
    start = {"w": torch.tensor([7.0, -3.0])}
    steps = {0: [1.0, 0.0], 2: [0.0, 2.0], 3: [-1.0, 0.0]}
    extracts = {
        k: sampler.extract({"w": start["w"] + torch.tensor(step)}, start)
        for k, step in steps.items()
    }
    sampler.aggregate([PartUpdate(k, 1, {}, each) for k, each in extracts.items()])
    right = np.pi / 2
    expected = np.zeros((5, 5))
    expected[0, 2] = expected[2, 0] = expected[2, 3] = expected[3, 2] = right
    expected[0, 3] = expected[3, 0] = np.pi
    np.testing.assert_allclose(sampler.distances, expected, atol=1e-6)
    apart = prepared([1] * 5, 2)
    apart.aggregate([PartUpdate(k, 1, {}, each) for k, each in extracts.items()])
    assert apart.distances[0, 1] == pytest.approx(right)


def test_the_first_rounds_can_draw_by_size_from_all_clients() -> None:
    sampler = prepared([5, 0, 1, 4], 2, rounds_by_size=10)
    move(sampler, [[1.0, 0.0], [0.0, 0.0], [0.0, 1.0], [1.0, 0.1]])
    assert sampler.distributions(10).tolist() == [[5, 1, 4]] * 2
    later = sampler.distributions(11)
    assert later.tolist() != [[5, 1, 4]] * 2
    assert later.sum(axis=0).tolist() == [10, 2, 8]
    draws: Counter[int] = Counter(
        client
        for seed in range(1000)
        for client in prepared([5, 0, 1, 4], 2, seed, rounds_by_size=10).select(1)
    )
    for client, size in ((0, 5), (2, 1), (3, 4)):
        assert draws[client] / 1000 == pytest.approx(2 * size / 10, abs=0.07)


def test_the_copy_in_hics_runs() -> None:
    federation = federate("sampler=clustered_hics", "aggregator=uniform", *TINY)
    sampler = federation.sampler
    assert isinstance(sampler, Clustered)
    assert (sampler.untrained, sampler.rounds_by_size, sampler.linkage_on) == ("zero", 10, "rows")
    federation.run_round(1)
    assert federation.run_round(2).metrics["clients/quarantined"] == 0
