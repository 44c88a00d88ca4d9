from typing import Any

import numpy as np
import pytest
import torch

from fedexp.drawing.feature_map import ModelFeatures, Projection, feature_map, project

Z = torch.randn(60, 5, generator=torch.Generator().manual_seed(0))
LABELS = torch.arange(60) % 3
COUNTS = {"client 0": torch.tensor([4, 0, 9]), "client 1": torch.tensor([1, 5, 2])}


@pytest.mark.parametrize("projection", ["pca", "tsne"])
def test_one_panel_for_each_model_with_every_sample(projection: Projection) -> None:
    models = [ModelFeatures("global model", Z), ModelFeatures("client 0", Z + 1)]
    figure = feature_map(models, LABELS, ("a", "b", "c"), projection, [0, 1, 2], {})
    assert [axes.get_title() for axes in figure.axes] == ["global model", "client 0"]
    expected = np.split(project(torch.cat([Z, Z + 1]).numpy(), projection), 2)
    for axes, points in zip(figure.axes, expected, strict=True):
        for number, drawn in enumerate(axes.collections):
            np.testing.assert_allclose(drawn.get_offsets(), points[number::3])
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["a", "b", "c"]


def test_chosen_classes_and_their_counts_at_each_client() -> None:
    chosen = LABELS != 1
    models = [ModelFeatures("client 0", Z[chosen]), ModelFeatures("client 1", Z[chosen])]
    figure = feature_map(models, LABELS[chosen], ("a", "b", "c"), "pca", [2, 0], COUNTS)
    *panels, bars = figure.axes
    assert [len(panel.collections) for panel in panels] == [2, 2]
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["c", "a"]
    heights = [[bar.get_height() for bar in client] for client in bars.containers]  # type: ignore[attr-defined]
    assert heights == [[9, 4], [2, 1]]
    assert [label.get_text() for label in bars.get_xticklabels()] == ["c", "a"]


def test_features_of_the_plane_are_drawn_with_their_prototypes() -> None:
    z = torch.tensor([[3.0, 4.0], [0.0, 1.0], [-1.0, 0.0]])
    prototypes = torch.tensor([[2.0, 0.0], [0.0, -1.0], [0.5, 0.5]])
    model = ModelFeatures("global model", z, prototypes)
    figure = feature_map([model], torch.tensor([0, 1, 1]), ("a", "b", "c"), "tsne", [0, 1], {})
    (axes,) = figure.axes
    points = np.concatenate([np.asarray(each.get_offsets()) for each in axes.collections])
    np.testing.assert_allclose(points, z)
    arrows: list[Any] = list(axes.texts)
    # The farthest feature is at distance 5 and the longest prototype has length 2.
    assert [tuple(arrow.xy) for arrow in arrows] == [(5, 0), (0, -2.5)]
    assert all(arrow.xyann == (0, 0) for arrow in arrows)
    assert "prototypes as arrows" in figure.get_suptitle()


def test_many_classes_have_colours_but_no_legend() -> None:
    names = [str(c) for c in range(100)]
    figure = feature_map([ModelFeatures("m", Z)], LABELS, names, "pca", range(100), {})
    assert not figure.legends
    colors = [tuple(drawn.get_facecolor()[0]) for drawn in figure.axes[0].collections]
    assert len(set(colors)) == 100


def test_projection_keeps_the_plane_and_finds_the_widest_directions() -> None:
    plane = np.random.default_rng(0).normal(size=(20, 2)).astype(np.float32)
    np.testing.assert_array_equal(project(plane, "tsne"), plane)
    np.testing.assert_array_equal(project(plane[:, :1], "pca")[:, 0], plane[:, 0])
    wide = np.zeros((50, 4), dtype=np.float32)
    wide[:, 2] = np.linspace(-9, 9, 50)
    wide[:, 0] = np.cos(np.arange(50))
    found = project(wide, "pca")
    assert abs(np.corrcoef(found[:, 0], wide[:, 2])[0, 1]) == pytest.approx(1, abs=1e-3)
    large = np.random.default_rng(0).normal(size=(1100, 600)).astype(np.float32)
    np.testing.assert_array_equal(project(large, "pca"), project(large, "pca"))


@pytest.mark.parametrize("samples", [1, 2, 5, 12])
@pytest.mark.parametrize("projection", ["pca", "tsne"])
def test_few_samples_can_be_projected(samples: int, projection: Projection) -> None:
    assert project(Z[:samples].numpy(), projection).shape == (samples, 2)
