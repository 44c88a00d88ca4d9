import json
from pathlib import Path

import pytest
from matplotlib.figure import Figure
from support.run_files import write_run

from fedexp.cli.report import main
from fedexp.reporting.report import Report
from fedexp.reporting.wandb_pages import grouping, pictures
from fedexp.reporting.wandb_report import build
from fedexp.tracking.figure_files import FigureFiles
from fedexp.tracking.tracker import Record, RunInfo

ROUND = {
    "global/accuracy": 0.5,
    "train/loss": 1.0,
    "personal/std": 0.1,
    "geometry/classifier_angle": 90.0,
    "cost/upload_bytes": 8,
}


@pytest.fixture
def made(tmp_path: Path) -> Report:
    """Two methods at two values of a number."""
    for n, name in enumerate(("fedavg", "fednh")):
        for rho in (1, 2):
            overrides = [f"algorithm={name}", f"head.rho={rho}"]
            folder = write_run(tmp_path / f"{n}{rho}", overrides, [ROUND, ROUND])
            (folder / "figures").mkdir()
            for picture in ("heatmap_partition_0000", "heatmap_prototype_similarity_0002"):
                (folder / "figures" / f"{picture}.png").touch()
    return Report.read(tmp_path)


def test_pictures_have_the_names_under_which_they_were_logged(tmp_path: Path) -> None:
    names = ["loss_surface", "my_measure/x", "heatmap/partition"]
    run = write_run(tmp_path / "run")
    FigureFiles(RunInfo(run)).log(Record(7, figures={name: Figure() for name in names}))
    assert pictures(Report.read(run).runs) == sorted(names)


def test_runs_are_grouped_by_what_was_swept(made: Report) -> None:
    assert grouping(made) == ["config.choices.algorithm", "config.head.rho"]


def test_the_spec(made: Report) -> None:
    model = build(made, "lab", "digits")._to_model()
    assert model.project.model_dump(by_alias=True)["entityName"] == "lab"
    blocks = json.loads(model.spec.model_dump_json(by_alias=True, exclude_none=True))["blocks"]
    first = next(each for each in blocks if each["type"] == "markdown-block")
    assert "| fednh | 2 | 1 | 0.5000 |" in first["content"]
    headings = [e["children"][0]["text"] for e in blocks if e["type"] == "heading"]
    grids = [each["metadata"] for each in blocks if each["type"] == "panel-grid"]
    sections = [grid["panelBankSectionConfig"]["panels"] for grid in grids]
    plotted = [[each["config"].get("metrics") for each in panels] for panels in sections]
    assert dict(zip(headings, plotted, strict=True)) == {
        "Global model": [["global/accuracy"], ["train/loss"]],
        "Personal models": [["personal/std"]],
        "Geometry and client sampling": [["geometry/classifier_angle"]],
        "Cost": [["cost/upload_bytes"]],
        "Heatmaps and other pictures": [None],
    }
    panels = [panel for section in sections for panel in section]
    plot, pictures = panels[0]["config"], panels[-1]["config"]
    assert (plot["xAxis"], plot["metrics"]) == ("round", ["global/accuracy"])
    assert (plot["groupAgg"], plot["groupArea"]) == ("mean", "stddev")
    assert pictures["mediaKeys"] == ["heatmap/partition", "heatmap/prototype_similarity"]
    (runs,) = grids[0]["runSets"]
    assert [(key["section"], key["name"]) for key in runs["grouping"]] == [
        ("config", "choices.value.algorithm"),
        ("config", "head.value.rho"),
    ]
    assert '"name": "name"' in json.dumps(runs["filters"])  # the run's id


def test_a_mistyped_project(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main([str(tmp_path), "--wandb", "digits"])
    assert "digits: should be ENTITY/PROJECT" in capsys.readouterr().err
