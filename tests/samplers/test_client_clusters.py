import logging

import numpy as np
import pytest
import torch
from torch import Tensor

from fedexp.errors import InputError
from fedexp.samplers.client_clusters import ClientClusters
from fedexp.samplers.clusters import LinkageOn
from fedexp.samplers.heterogeneity import Profiles, estimated_entropy


def clustering(
    clusters: int, exact_up_to: int, landmarks: int, linkage_on: LinkageOn = "rows"
) -> ClientClusters:
    return ClientClusters(clusters, 0.1, linkage_on, exact_up_to, landmarks)


def profiles(signals: Tensor) -> Profiles:
    return Profiles(estimated_entropy(signals, 0.1), signals)


def noise(clients: int) -> Tensor:
    return 0.3 * torch.randn(clients, 4, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("linkage_on", ["rows", "condensed"])
def test_landmarks_find_the_clusters_that_the_exact_clustering_finds(linkage_on: LinkageOn) -> None:
    """Signals around three directions of entropies 0, ln 2, ln 4: clusters 0, 1, 2."""
    groups = torch.arange(300) % 3
    centres = torch.tensor([[4.0, 0, 0, 0], [0, 2.0, 2.0, 0], [0.1, 0.1, 0.1, 0.1]])
    clients = profiles(centres[groups] + 0.01 * noise(300))
    for exact_up_to in (300, 299):
        cluster = clustering(3, exact_up_to, 30, linkage_on)
        for seed in (0, 1):
            assert torch.equal(cluster(clients, np.random.default_rng(seed)), groups)


def test_the_result_does_not_depend_on_the_block_size(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster, clients = clustering(5, 10, 20), profiles(noise(100))
    whole = cluster(clients, np.random.default_rng(0))
    monkeypatch.setattr("fedexp.samplers.client_clusters._BLOCK", 7)
    assert torch.equal(cluster(clients, np.random.default_rng(0)), whole)


def test_a_large_population_is_warned_of_once(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        clustering(3, 300, 30).check(300)
        assert not caplog.records
        clustering(3, 299, 30).check(300)
    assert len(caplog.records) == 1
    assert "clusters 30 of them" in caplog.text


def test_fewer_landmarks_than_clusters_are_an_error() -> None:
    with pytest.raises(InputError, match=r"sampler\.landmarks=3: must be at least .* 4"):
        clustering(4, 8, 3).check(9)
    clustering(4, 9, 3).check(9)
