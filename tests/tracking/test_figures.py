from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from matplotlib.colors import PowerNorm
from matplotlib.figure import Figure

from fedexp.core.tabled_figure import TabledFigure
from fedexp.tracking.figures import FigureFiles, partition_heatmap, pixels, similarity_heatmap
from fedexp.tracking.tracker import Record, RunInfo

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


def test_similarity_is_the_cosine() -> None:
    figure = similarity_heatmap(
        torch.tensor([[3.0, 0.0], [-2.0, 0.0], [1.0, 1.0], [0.0, 0.0]]), "abcd"
    )
    image = axes(figure, 0).images[0]
    half = 2**-0.5
    expected: Any = [[1, -1, half, 0], [-1, 1, -half, 0], [half, -half, 1, 0], [0, 0, 0, 0]]

    np.testing.assert_allclose(image.get_array(), expected, atol=1e-12)
    assert image.get_clim() == (-1, 1)
    assert texts(figure, 0)[:4] == ["1.00", "-1.00", "0.71", "0.00"]


@pytest.mark.parametrize(("clients", "classes"), [(5, 2), (20, 10), (200, 2), (5, 200), (200, 200)])
def test_any_size_stays_bounded_and_labelled(clients: int, classes: int) -> None:
    names = [f"class {label}" for label in range(classes)]
    partition = partition_heatmap(torch.ones(clients, classes, dtype=torch.int64), names)
    similarity = similarity_heatmap(torch.eye(classes), names)

    for figure, number in ((partition, 1), (similarity, 0)):
        height, width, channels = pixels(figure).shape
        assert max(height, width) <= 2000
        assert channels == 4
        assert 2 <= len(figure.axes[number].get_yticks()) <= 50
    assert len(partition.axes[1].get_xticks()) <= 50
    assert bool(texts(similarity, 0)) == (classes <= 12)


def test_a_partition_without_samples() -> None:
    figure = partition_heatmap(torch.zeros(3, 2, dtype=torch.int64), ["cat", "dog"])
    assert pixels(figure).size > 0
    assert texts(figure, 1) == []


def test_pixels_are_the_picture() -> None:
    image = pixels(Figure(figsize=(2, 1), dpi=10, facecolor=(1, 0, 0)))
    assert image.shape == (10, 20, 4)
    assert (image == [255, 0, 0, 255]).all()


def test_files_are_named_by_figure_and_round(tmp_path: Path) -> None:
    tracker = FigureFiles(RunInfo(tmp_path))
    tracker.log(Record(1, {"global/accuracy": 0.5}))
    assert not (tmp_path / "figures").exists()
    tracker.log(Record(10, figures={"heatmap/x": Figure(), "plain": Figure()}))
    tracker.finish({})
    names = sorted(path.name for path in (tmp_path / "figures").iterdir())
    assert names == ["heatmap_x_0010.png", "plain_0010.png"]


def test_classes_of_a_super_class_stand_together() -> None:
    vectors = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 0.1], [0.1, 1.0]])
    figure = similarity_heatmap(
        vectors, ("cat", "bus", "dog", "car"), ("pet", "road", "pet", "road")
    )
    cells = figure.axes[0]
    assert [label.get_text() for label in cells.get_yticklabels()] == ["pet", "road"]
    assert cells.get_yticks().tolist() == [0.5, 2.5]
    shown = cells.images[0].get_array()
    assert shown is not None
    unit = torch.nn.functional.normalize(vectors[[0, 2, 1, 3]].double(), dim=1)
    assert torch.allclose(torch.as_tensor(shown.data), unit @ unit.T)


def test_the_numbers_of_a_figure_are_saved_beside_it(tmp_path: Path) -> None:
    figure = TabledFigure({"client": [3, 7], "entropy": [0.5, 1.25]}, figsize=(1, 1))
    FigureFiles(RunInfo(tmp_path)).log(Record(4, figures={"some/name": figure}))
    folder = tmp_path / "figures"
    assert {path.name for path in folder.iterdir()} == {"some_name_0004.png", "some_name_0004.csv"}
    content = (folder / "some_name_0004.csv").read_text(encoding="utf-8")
    assert content.splitlines() == ["client,entropy", "3,0.5", "7,1.25"]
