from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from PIL import Image

from fedexp.drawing.data_figure import DataFigure
from fedexp.tracking.figure_files import FigureFiles, saved_figures
from fedexp.tracking.tracker import Record, RunInfo


def test_files_are_named_by_figure_and_round(tmp_path: Path) -> None:
    tracker = FigureFiles(RunInfo(tmp_path))
    tracker.log(Record(1, {"global/accuracy": 0.5}))
    assert not (tmp_path / "figures").exists()
    tracker.log(Record(10, figures={"heatmap/x": Figure(), "plain": Figure()}))
    tracker.finish({})
    names = sorted(path.name for path in (tmp_path / "figures").iterdir())
    assert names == ["heatmap_x_0010.png", "plain_0010.png"]


def test_arrays_are_beside_their_picture(tmp_path: Path) -> None:
    figure = DataFigure({"cells": np.eye(2), "names": ("cat", "oak tree")})
    FigureFiles(RunInfo(tmp_path)).log(Record(3, figures={"heatmap/x": figure, "plain": Figure()}))
    names = sorted(path.name for path in (tmp_path / "figures").iterdir())
    assert names == ["heatmap_x_0003.npz", "heatmap_x_0003.png", "plain_0003.png"]
    with np.load(tmp_path / "figures" / "heatmap_x_0003.npz") as saved:
        assert saved["cells"].tolist() == [[1, 0], [0, 1]]
        assert saved["names"].tolist() == ["cat", "oak tree"]


def test_columns_are_beside_their_picture_as_a_table(tmp_path: Path) -> None:
    figure = DataFigure({"client": np.array([3, 7]), "entropy": np.array([0.5, 1.25])})
    FigureFiles(RunInfo(tmp_path)).log(Record(4, figures={"some/name": figure}))
    folder = tmp_path / "figures"
    assert {path.name for path in folder.iterdir()} == {"some_name_0004.png", "some_name_0004.csv"}
    content = (folder / "some_name_0004.csv").read_text(encoding="utf-8")
    assert content.splitlines() == ["client,entropy", "3,0.5", "7,1.25"]


def test_a_dot_in_a_name_is_no_ending(tmp_path: Path) -> None:
    tracker = FigureFiles(RunInfo(tmp_path))
    for round in (1, 2):
        figure = DataFigure({"norm": np.arange(3)})
        tracker.log(Record(round, figures={"drift/conv1.weight": figure}))
    names = sorted(path.name for path in (tmp_path / "figures").iterdir())
    stems = [f"drift_conv1.weight_{round:04d}" for round in (1, 2)]
    assert names == [f"{stem}.{kind}" for stem in stems for kind in ("csv", "png")]
    assert [*saved_figures(tmp_path)[2]] == ["drift/conv1.weight"]


def test_saved_figures_have_their_names(tmp_path: Path) -> None:
    names = ["loss_surface", "my_measure/x", "heatmap/partition", "drift/größe/ж"]
    FigureFiles(RunInfo(tmp_path)).log(Record(7, figures={name: Figure() for name in names}))
    assert {*saved_figures(tmp_path)[7]} == {*names}


def test_a_picture_without_a_title_has_the_name_that_is_likeliest(tmp_path: Path) -> None:
    (tmp_path / "figures").mkdir()
    Image.new("L", (2, 2)).save(tmp_path / "figures" / "heatmap_x_0001.png")
    (tmp_path / "figures" / "heatmap_x_0002.png").touch()  # a kill may leave it
    assert [[*names] for names in saved_figures(tmp_path).values()] == [["heatmap/x"]] * 2


def test_pictures_of_other_programs_are_no_figures(tmp_path: Path) -> None:
    (tmp_path / "figures").mkdir()
    (tmp_path / "figures" / "my_plot.png").touch()
    assert saved_figures(tmp_path) == {}
