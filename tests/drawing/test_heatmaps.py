from typing import Any

import numpy as np
import pytest
import torch
from matplotlib.colors import PowerNorm
from matplotlib.figure import Figure

from fedexp.drawing.data_figure import pixels
from fedexp.drawing.heatmaps import partition_heatmap, similarity_heatmap, similarity_zoom

COUNTS = torch.tensor([[4, 0], [100, 1], [0, 9]])


def axes(figure: Figure, number: int) -> Any:
    return figure.axes[number]


def texts(figure: Figure, number: int) -> list[str]:
    return [text.get_text() for text in figure.axes[number].texts]


def test_partition_shows_counts_and_sizes() -> None:
    figure = partition_heatmap(COUNTS, ["cat", "dog"])
    sizes, cells = axes(figure, 0), axes(figure, 1)
    shown = cells.images[0].get_array()

    assert [bar.get_height() for bar in sizes.patches] == [4, 101, 9]
    assert shown.filled(0).tolist() == [[4, 100, 0], [0, 1, 9]]
    assert np.ma.getmaskarray(shown).tolist() == [[False, False, True], [True, False, False]]
    assert texts(figure, 1) == ["4", "100", "1", "9"]
    assert [label.get_text() for label in cells.get_yticklabels()] == ["cat", "dog"]


def test_partition_colours_follow_the_square_root() -> None:
    norm = axes(partition_heatmap(COUNTS, ["cat", "dog"]), 1).images[0].norm
    assert isinstance(norm, PowerNorm)
    assert list(norm(np.array([0, 1, 25, 100]))) == pytest.approx([0, 0.1, 0.5, 1])


def test_similarity_is_shown_and_written_into_the_cells() -> None:
    similarity = torch.tensor([[1.0, -1.0], [-1.0, 1.0]]) * torch.tensor(0.71)
    figure = similarity_heatmap(similarity, "ab", title="two classes")
    image = axes(figure, 0).images[0]
    np.testing.assert_allclose(image.get_array(), similarity)
    assert image.get_clim() == (-1, 1)
    assert texts(figure, 0) == ["0.71", "-0.71", "-0.71", "0.71"]
    assert axes(figure, 0).get_title() == "two classes"


@pytest.mark.matrix
@pytest.mark.parametrize(("clients", "classes"), [(5, 2), (20, 10), (200, 2), (5, 200), (200, 200)])
def test_any_size_stays_bounded_and_labelled(clients: int, classes: int) -> None:
    names = [f"class {label}" for label in range(classes)]
    partition = partition_heatmap(torch.ones(clients, classes, dtype=torch.int64), names)
    similarity = similarity_heatmap(torch.eye(classes), names)

    for figure, number in ((partition, 1), (similarity, 0)):
        height, width, channels = pixels(figure).shape
        assert max(height, width) <= 2000
        assert channels == 3
        assert 2 <= len(figure.axes[number].get_yticks()) <= 50
    assert len(partition.axes[1].get_xticks()) <= 50
    assert bool(texts(similarity, 0)) == (classes <= 12)


def test_a_partition_without_samples() -> None:
    figure = partition_heatmap(torch.zeros(3, 2, dtype=torch.int64), ["cat", "dog"])
    assert pixels(figure).size > 0
    assert texts(figure, 1) == []


GROUPS = ("pet", "road", "pet", "road", "tree")
NUMBERED = torch.arange(25.0).view(5, 5) / 25


def test_classes_of_a_super_class_stand_together_in_a_box() -> None:
    figure = similarity_heatmap(NUMBERED, ("cat", "bus", "dog", "car", "oak"), GROUPS)
    cells = axes(figure, 0)
    assert [label.get_text() for label in cells.get_yticklabels()] == ["pet", "road", "tree"]
    assert cells.get_yticks().tolist() == [0.5, 2.5, 4]
    order = [0, 2, 1, 3, 4]
    expected = [[NUMBERED[row, column].item() for column in order] for row in order]
    np.testing.assert_allclose(cells.images[0].get_array(), expected)
    assert texts(figure, 0) == [f"{value:.2f}" for row in expected for value in row]
    boxes = [(*box.get_xy(), box.get_width(), box.get_height()) for box in cells.patches]
    assert boxes == [(-0.5, -0.5, 2, 2), (1.5, 1.5, 2, 2), (3.5, 3.5, 1, 1)]


def test_zoom_shows_the_blocks_of_pairs_of_super_classes() -> None:
    pairs = [("pet", "road"), ("tree", "pet")]
    figure = similarity_zoom(NUMBERED, ("cat", "bus", "dog", "car", "oak"), GROUPS, pairs)
    first, second = axes(figure, 0), axes(figure, 1)
    # cat is 0 and dog 2, bus 1 and car 3, oak 4; the cell of row r and column c is (5 r + c) / 25.
    np.testing.assert_allclose(first.images[0].get_array(), [[1 / 25, 3 / 25], [11 / 25, 13 / 25]])
    np.testing.assert_allclose(second.images[0].get_array(), [[20 / 25, 22 / 25]])
    assert (first.get_ylabel(), first.get_xlabel()) == pairs[0]
    assert [label.get_text() for label in first.get_yticklabels()] == ["cat", "dog"]
    assert [label.get_text() for label in second.get_xticklabels()] == ["cat", "dog"]
    assert texts(figure, 1) == ["0.80", "0.88"]
