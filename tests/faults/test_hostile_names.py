"""Names from outside (classes, values, tags, folders) are shown as they are, and run nothing."""

import csv
import json
import logging
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from federations import compose
from matplotlib.figure import Figure
from PIL import Image

from fedexp.drawing.data_figure import DataFigure, pixels
from fedexp.drawing.feature_map import ModelFeatures, feature_map
from fedexp.drawing.heatmaps import partition_heatmap, similarity_heatmap, similarity_zoom
from fedexp.drawing.texts import legible, printable
from fedexp.runtime.execution import draw_partition
from fedexp.tracking.figure_files import FigureFiles
from fedexp.tracking.jsonl import JsonLines, parse_records
from fedexp.tracking.summary import write_summary
from fedexp.tracking.table_files import TableFiles
from fedexp.tracking.tensorboard import TensorBoardTracker
from fedexp.tracking.tracker import Record, RunInfo, Tracker

HOSTILE = {
    "mathtext": r"$\frac{$",
    "html": "<script>alert(1)</script>",
    "link": "[click](javascript:alert(1))",
    "formula": '=HYPERLINK("http://x","y")',
    "tab": "\t=1+1",
    "terminal": "\x1b]0;owned\x07\x1b[31mred",
    "path": "../../a/b\\c",
    "unicode": "学习\u202e\u2028\udcff🐈",
    "latex": r"\input{/etc/passwd}%&#_^~{}$",
    "lines": "one\ntwo\r\nthree | four",
    "long": "x" * 5000,
}
NAMES = list(HOSTILE.values())


def figures() -> dict[str, Figure]:
    """The figures that show class names."""
    count = len(NAMES)
    similarity = torch.eye(count).double()
    z, labels = torch.rand(2 * count, 2), torch.arange(2 * count) % count
    features = feature_map(
        [ModelFeatures("global", z, torch.rand(count, 2))],
        labels,
        NAMES,
        "pca",
        range(count),
        {"client 0": torch.ones(count)},
    )
    return {
        "heatmap/partition": partition_heatmap(torch.ones(3, count).long(), NAMES),
        "heatmap/similarity": similarity_heatmap(similarity, NAMES),
        "heatmap/groups": similarity_heatmap(similarity, NAMES, NAMES),
        "heatmap/zoom": similarity_zoom(similarity, NAMES, NAMES, [(NAMES[0], NAMES[-1])]),
        "features": features,
    }


def test_printable_text_controls_no_terminal() -> None:
    for name in NAMES:
        shown = printable(name)
        assert not re.search("[\x00-\x1f\x7f-\x9f\u202e\u2028\ud800-\udfff]", shown)
        shown.encode()
    assert printable("\x1b[31mred") == r"\x1b[31mred"
    assert printable("学习 ±🐈") == "学习 ±🐈"
    assert legible("x" * 5000) == "x" * 39 + "…"
    assert legible("x" * 40) == "x" * 40


@pytest.mark.filterwarnings("ignore:Glyph", "ignore:constrained_layout")
@pytest.mark.parametrize(
    "name", ["heatmap/partition", "heatmap/groups", "heatmap/zoom", "features"]
)
def test_figures_show_any_class_name(name: str) -> None:
    assert pixels(figures()[name]).std() > 0


@pytest.mark.filterwarnings("ignore:Glyph", "ignore:constrained_layout")
def test_every_tracker_records_them(tmp_path: Path) -> None:
    record = Record(1, {"global/accuracy": 0.5}, dict.fromkeys(NAMES, 0.5), figures())
    for kind in (FigureFiles, TensorBoardTracker):
        kind(RunInfo(tmp_path)).log(record)
    names = {path.name for path in (tmp_path / "figures").glob("*.png")}
    assert len(names) == len(record.figures)


class Broken(DataFigure):
    """A figure that cannot be drawn."""

    def draw(self, renderer: Any) -> None:
        raise ValueError("cannot be drawn\nmore")


@pytest.mark.parametrize(
    "kinds", [(FigureFiles, TensorBoardTracker), (TensorBoardTracker, FigureFiles)]
)
def test_one_figure_that_fails_costs_that_figure(
    kinds: tuple[type[Tracker], ...], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    broken = Broken({"x": np.arange(2)})
    trackers = [kind(RunInfo(tmp_path)) for kind in kinds]
    for number in (1, 2):
        record = Record(number, figures={"some/figure": broken, "other": Figure()})
        for tracker in trackers:
            tracker.log(record)
    saved = sorted(path.name for path in (tmp_path / "figures").iterdir())
    assert saved == ["other_0001.png", "other_0002.png"]
    warnings = [each.message for each in caplog.records if each.levelno == logging.WARNING]
    assert warnings == [
        "figure some/figure: cannot be drawn, left out (ValueError: cannot be drawn)"
    ]


def test_json_and_csv_give_names_back_as_they_were(tmp_path: Path) -> None:
    info = RunInfo(tmp_path)
    tables = {"classes": {"class": NAMES, "accuracy": [0.25] * len(NAMES)}}
    per_class = dict.fromkeys(NAMES, 0.25)
    record = Record(1, {"global/accuracy": 0.5}, per_class, tables=tables)
    JsonLines(info).log(record)
    (read,) = parse_records((tmp_path / "metrics.jsonl").read_bytes())
    assert read.per_class == per_class
    write_summary(tmp_path, {"overrides": NAMES})
    assert json.loads((tmp_path / "summary.json").read_bytes()) == {"overrides": NAMES}
    TableFiles(info).log(record)
    with (tmp_path / "classes.csv").open(newline="") as file:
        found = [row["class"] for row in csv.DictReader(file)]
    assert found == [name.replace("\udcff", r"\udcff") for name in NAMES]  # no valid UTF-8


def write_images(root: Path) -> list[str]:
    """A folder of images whose classes have hostile names; returns these."""
    names = [name.replace("/", "_").lstrip(".")[:200] for name in NAMES]
    for split, count in (("train", 6), ("test", 2)):
        for number, name in enumerate(names):
            folder = root / split / name
            folder.mkdir(parents=True)
            for n in range(count):
                Image.new("RGB", (8, 8), (number, n, 0)).save(folder / f"{n}.png")
    return names


@pytest.mark.filterwarnings("ignore:Glyph", "ignore:constrained_layout")
def test_the_preview_of_a_folder_with_hostile_classes(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = write_images(tmp_path / "images")
    overrides = [f"data.root={tmp_path / 'images'}", f"data.cache={tmp_path / 'cache'}"]
    few = ["partition=iid", "clients.count=2", "clients.per_round=2"]
    config = compose("data=image_folder", *overrides, *few)
    picture, table = draw_partition(config, tmp_path / "preview")
    assert picture.read_bytes().startswith(b"\x89PNG")
    with table.open(newline="") as file:
        heading = next(csv.reader(file))
    escaped = [name.replace("\udcff", r"\udcff") for name in names]
    assert set(heading) == {"client", *escaped}

    broken = Broken({})
    monkeypatch.setattr("fedexp.runtime.execution.partition_picture", lambda data: broken)
    assert [path.name for path in draw_partition(config, tmp_path / "other")] == ["partition.csv"]
    assert "figure partition.png: cannot be drawn" in caplog.text
