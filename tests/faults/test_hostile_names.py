"""Names from outside (classes, values, tags, folders) are shown as they are, and run nothing."""

import csv
import json
import logging
import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from matplotlib.figure import Figure
from PIL import Image
from rich.console import Console
from support import wandb_log
from support.federations import compose
from support.run_files import write_run

from fedexp.cli.report import main
from fedexp.drawing.data_figure import DataFigure, pixels
from fedexp.drawing.feature_map import ModelFeatures, feature_map
from fedexp.drawing.heatmaps import partition_heatmap, similarity_heatmap, similarity_zoom
from fedexp.drawing.texts import legible, printable
from fedexp.reporting.csv import csv as csv_of
from fedexp.reporting.sweep import report_sweep
from fedexp.runtime.execution import draw_partition
from fedexp.tracking.figure_files import FigureFiles
from fedexp.tracking.jsonl import JsonLines, parse_records
from fedexp.tracking.progress import print_report
from fedexp.tracking.summary import write_summary
from fedexp.tracking.table_files import TableFiles
from fedexp.tracking.tensorboard import TensorBoardTracker
from fedexp.tracking.tracker import Record, RunInfo, Tracker
from fedexp.tracking.wandb import WandbTracker

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


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Glyph", "ignore:constrained_layout")
def test_wandb_stays_on_from_round_0(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("DIR", "CACHE_DIR", "DATA_DIR", "CONFIG_DIR"):
        monkeypatch.setenv(f"WANDB_{name}", str(tmp_path / "elsewhere"))
    names = [name for name in NAMES if "\udcff" not in name]
    config = {"seed": 0, "data": {"name": names}}
    settings = compose("tracking.wandb.mode=offline").tracking.wandb.model_copy(
        update={"tags": names, "group": HOSTILE["formula"]}
    )
    tracker = WandbTracker(RunInfo(tmp_path, config=config), settings)
    per_class = dict.fromkeys(NAMES, 0.5)
    tracker.log(Record(0, figures={"broken": Broken({}), **figures()}))
    tracker.log(Record(1, {"global/accuracy": 0.5}, per_class, figures()))
    tracker.finish({"metrics": {}})
    assert [each.message for each in caplog.records if each.levelno == logging.WARNING] == [
        "figure broken: cannot be drawn, left out (ValueError: cannot be drawn)"
    ]
    first, last = wandb_log.history(*wandb_log.run_files(tmp_path / "elsewhere"))  # WANDB_DIR
    for row in (first, last):
        assert {f"{name}/_type" for name in figures()} <= row.keys()
    assert last["global/accuracy"] == 0.5


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
    """A folder of images whose classes have hostile names, all of them in UTF-8; returns these."""
    names = [name.replace("/", "_").replace("\udcff", "").lstrip(".")[:200] for name in NAMES]
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
    assert set(heading) == {"client", *names}

    broken = Broken({})
    monkeypatch.setattr("fedexp.runtime.execution.partition_picture", lambda data: broken)
    assert [path.name for path in draw_partition(config, tmp_path / "other")] == ["partition.csv"]
    assert "figure partition.png: cannot be drawn" in caplog.text


def hostile_runs(folder: Path) -> None:
    """Two seeds of one run for each name, which is a method, a value, a tag and a group."""
    for number, name in enumerate(NAMES):
        for seed in (0, 1):
            row: dict[str, float] = {"global/accuracy": 0.1 * number + 0.01 * seed, name: seed}
            write_run(
                folder / f"{number}_{seed}",
                [f"data.name={json.dumps(name)}", f"seed={seed}"],
                [row, row],
                choices={"algorithm": name},
                tracking={"wandb": {"tags": [name], "group": name}},
                paper=[
                    {
                        "table": name,
                        "metric": "global/accuracy",
                        "statistic": "final",
                        "values": {name: 0.5, f"algorithm={name}": 0.6},
                    }
                ],
            )


@pytest.mark.filterwarnings("ignore:Glyph")
def test_a_report_runs_nothing_in_any_format(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    hostile_runs(tmp_path / "runs")
    damaged = tmp_path / "runs" / HOSTILE["terminal"].replace("/", "_")
    damaged.mkdir()
    (damaged / "run.json").write_text("[]")
    folder = tmp_path / "report"
    options = ["--to", str(folder), "--metrics", f"global/accuracy,{printable(HOSTILE['html'])}"]
    main([str(tmp_path / "runs"), *options, "--format", "md,csv,tex,html,pdf", "--figures", "all"])
    said = capsys.readouterr()
    controls = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e\ud800-\udfff]")
    assert not controls.search(said.out + said.err)
    assert "its run.json is damaged" in said.err
    assert "cannot be drawn" not in said.err

    texts = {kind: (folder / f"report.{kind}").read_text() for kind in ("md", "tex", "html")}
    for text in texts.values():
        assert not controls.search(text)
        assert "<script>alert" not in text
    assert "](javascript:" not in texts["md"].replace("\\](", "")
    assert r"\input" not in texts["tex"]
    for path in folder.glob("*.csv"):
        for row in csv.reader(path.open(newline="")):
            assert not any(re.match(r"[=@\t]|[+-](?![\d.])", cell) for cell in row), path
    methods = pd.read_csv(folder / "results.csv")["data.name"].unique()
    assert "'" + HOSTILE["formula"] in methods
    assert len(methods) == len(NAMES)
    figures_ = list((folder / "figures").glob("*.png"))
    assert len(figures_) > len(NAMES) - 2
    assert all(len(path.name.encode()) < 256 for path in figures_)


def test_numbers_with_a_sign_are_no_formulas() -> None:
    cells = ["-0.5", "+3", "-1e-05", ".5", "=1+1", "+cmd|' /C calc'!A0", "-1+1", "@SUM(A1)", "a=b"]
    cells += ["\uff1d1+1"]  # full-width, as a Japanese keyboard writes it
    (_, *lines) = csv_of(pd.DataFrame({"x": cells, "y": -0.5})).decode().splitlines()
    shown = [next(csv.reader([line]))[0] for line in lines]
    assert shown == [cell if n < 4 or n == 8 else f"'{cell}" for n, cell in enumerate(cells)]
    assert all(line.endswith(",-0.5") for line in lines)


def test_the_table_of_a_sweep_controls_no_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    hostile_runs(tmp_path)
    assert report_sweep(tmp_path, "fedexp.log") == 0
    assert "\x1b" not in capsys.readouterr().out
    rows = list(csv.reader((tmp_path / "sweep.csv").open(newline="")))
    assert not any(re.match(r"[=@\t]", cell) for row in rows for cell in row)


def test_the_results_of_a_run_control_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    total = {"cost/download_bytes": 1, "cost/upload_bytes": 1}
    summary = {"metrics": {}, "overrides": NAMES, "wall_time_s": 1.0, "total": total}
    print_report(summary, Path(HOSTILE["terminal"]), Console(), brief=True)
    said = capsys.readouterr().out
    assert not re.search("[\x00-\x09\x0b-\x1f]", said)
    assert len(said.splitlines()) == 1
