"""Many equal clients as one point, against Ward's method on all of them."""

import math

import numpy as np
import pytest
import torch
from scipy.cluster.hierarchy import linkage

from fedexp.samplers.client_clusters import ClientClusters
from fedexp.samplers.clusters import LinkageOn
from fedexp.samplers.heterogeneity import Profiles, estimated_entropy
from fedexp.samplers.ward_groups import group_tree


def test_the_tree_of_single_points_is_that_of_scipy() -> None:
    points = np.random.default_rng(0).normal(size=(40, 3))
    squares = np.square(points[:, None] - points).sum(axis=2)
    expected = linkage(points, "ward")
    found = group_tree(squares, np.ones(40))
    np.testing.assert_allclose(found[:, 2:], expected[:, 2:], rtol=1e-9)
    np.testing.assert_array_equal(found[:, :2], expected[:, :2])


def test_groups_by_hand() -> None:
    """Points 0 and 1, and five points at 3: 0 and 1 join at 1, then with the five.

    The squared distance of Ward is 2 s t / (s + t) times that of the centres: 2 2 5 / 7 2.5^2.
    """
    squares = np.zeros((3, 3))
    squares[0, 1] = squares[1, 0] = 1.0
    squares[0, 2] = squares[2, 0] = 2 * 5 / 6 * 9.0
    squares[1, 2] = squares[2, 1] = 2 * 5 / 6 * 4.0
    tree = group_tree(squares, np.array([1, 1, 5]))
    assert tree[0].tolist() == [0, 1, 1, 2]
    assert tree[1].tolist() == pytest.approx([2, 3, math.sqrt(20 / 7 * 2.5**2), 3])


def signals(known: int, scale: float, seed: int) -> torch.Tensor:
    """Directions of different lengths: small ones have entropies near that of zero signals."""
    draw = torch.Generator().manual_seed(seed)
    lengths = scale * torch.rand(known, 1, generator=draw)
    return lengths * torch.randn(known, 4, generator=draw)


def profiles(updates: torch.Tensor) -> Profiles:
    return Profiles(estimated_entropy(updates, 0.1), updates)


@pytest.mark.parametrize("linkage_on", ["rows", "condensed"])
@pytest.mark.parametrize(("known", "unknown"), [(30, 50), (45, 1), (12, 200), (3, 40)])
@pytest.mark.parametrize("clusters", [2, 5, 20])
@pytest.mark.parametrize("scale", [0.01, 0.3])
def test_one_point_for_all_unknown_clients_changes_nothing(
    linkage_on: LinkageOn, known: int, unknown: int, clusters: int, scale: float
) -> None:
    for seed in (0, 1):
        of_known, zero = signals(known, scale, seed), torch.zeros(1, 4)
        everyone = torch.cat((of_known, zero.repeat(unknown, 1)))
        cluster = ClientClusters(clusters, 0.1, linkage_on, 1000, 30)
        whole = cluster(profiles(everyone), np.random.default_rng(0))
        found = cluster.beside_unknown(
            profiles(of_known), profiles(zero), unknown, np.random.default_rng(0)
        )
        same, same_found = whole[:, None] == whole, found[:, None] == found
        if len(found.unique()) == clusters:
            assert len(whole[known:].unique()) == 1
            assert torch.equal(same_found, same[: known + 1, : known + 1])
        else:  # rounding decides how Ward's method divides the equal clients
            assert torch.equal(same_found[:known, :known], same[:known, :known])
            assert not (found[:-1] == found[-1]).any()


@pytest.mark.parametrize("linkage_on", ["rows", "condensed"])
def test_without_known_clients_there_is_one_cluster(linkage_on: LinkageOn) -> None:
    cluster, zero = ClientClusters(5, 0.1, linkage_on, 1000, 30), torch.zeros(1, 4)
    found = cluster.beside_unknown(profiles(zero[:0]), profiles(zero), 9, np.random.default_rng(0))
    assert found.tolist() == [0]


def test_more_known_clients_than_can_be_clustered_join_the_landmarks() -> None:
    """Two directions of entropy 0 and the unknown: each client is with its own direction."""
    groups = torch.arange(300) % 2
    centres = torch.tensor([[4.0, 0, 0, 0], [0, 2.0, 2.0, 0]])
    noise = torch.randn(300, 4, generator=torch.Generator().manual_seed(0))
    of_known = centres[groups] + 0.003 * noise
    cluster = ClientClusters(3, 0.1, "rows", 100, 30)
    zero = torch.zeros(1, 4)
    found = cluster.beside_unknown(
        profiles(of_known), profiles(zero), 10_000, np.random.default_rng(0)
    )
    assert len(found) == 301
    assert len(found.unique()) == 3
    assert torch.equal(found[:-1, None] == found[:-1], groups[:, None] == groups)
    assert not (found[:-1] == found[-1]).any()
