from typing import Any

import pytest
import torch
from sklearn.cluster import AgglomerativeClustering
from sklearn.metrics import adjusted_rand_score

from fedexp.samplers.clusters import nearest_clusters, ward


@pytest.mark.parametrize("linkage_on", ["rows", "condensed"])
def test_ward_separates_distant_groups(linkage_on: Any) -> None:
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
def test_ward_agrees_with_scikit_learn(linkage_on: Any) -> None:
    """Scikit-learn takes points: those whose distances are given, or the rows themselves."""
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
