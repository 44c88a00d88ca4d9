from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure
from matplotlib.image import imread

import fedexp
from fedexp.drawing.data_figure import Arrays, pixels, read_numbers, save_numbers, save_picture
from fedexp.drawing.style import empty_figure


def test_pixels_are_the_picture() -> None:
    image = pixels(Figure(figsize=(2, 1), dpi=10, facecolor=(1, 0, 0)))
    assert image.shape == (10, 20, 3)
    assert (image == [255, 0, 0]).all()


def test_a_transparent_background_is_white() -> None:
    assert (pixels(Figure(figsize=(2, 1), dpi=10, facecolor="none")) == 255).all()


def test_a_saved_picture_has_the_pixels_of_savefig(tmp_path: Path) -> None:
    figure = empty_figure(3, 2)
    figure.subplots().set(xlabel="client", title="one drawing for all trackers")
    save_picture(tmp_path / "own.png", figure)
    assert pixels(figure) is pixels(figure)
    figure.savefig(tmp_path / "savefig.png")
    own, savefig = (imread(tmp_path / f"{name}.png") for name in ("own", "savefig"))
    assert (own == savefig[..., :3]).all()


def test_runs_save_their_pictures_in_one_way() -> None:
    """Reports make files of other kinds, and pictures in memory."""
    package = Path(fedexp.__file__).parent
    found = [path.relative_to(package) for path in package.rglob("*.py")]
    others = [
        p for p in found if p.parts[0] != "reporting" and ".savefig(" in (package / p).read_text()
    ]
    assert others == []


@pytest.mark.parametrize(
    ("kind", "data"),
    [
        (".csv", {"client": np.array([3, 7]), "entropy": np.array([0.1, 1.25])}),
        (".npz", {"cells": np.eye(2), "names": ("cat", "oak tree")}),
    ],
)
def test_saved_numbers_are_read(kind: str, data: Arrays, tmp_path: Path) -> None:
    save_numbers(tmp_path / "name", data)
    found = read_numbers(tmp_path / f"name{kind}")
    assert {name: values.tolist() for name, values in found.items()} == {
        name: np.asarray(values).tolist() for name, values in data.items()
    }
