"""The view that would be sent, as JSON, against what real runs measured and recorded."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support import wandb_log
from support.run_files import accuracies, write_run
from support.wandb_server import WandbServer, serving

import fedexp
from fedexp.cli.report import main
from fedexp.reporting.report import Report
from fedexp.reporting.wandb_workspace import build
from fedexp.tracking.jsonl import PER_CLASS

TINY = [
    *["rounds=2", "clients.count=4", "clients.per_round=2", "local.epochs=1", "data.subset=200"],
    *["model.hidden=[8]", "tracking.progress=false"],
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two algorithms; the first run also has W&B's record."""
    made = tmp_path_factory.mktemp("runs")
    for algorithm, mode in (("fedavg", "offline"), ("fednh", "disabled")):
        where = [f"hydra.run.dir={made / algorithm}", f"tracking.wandb.mode={mode}"]
        fedexp.run([*TINY, f"algorithm={algorithm}", *where])
    return made


def sent(report: Report) -> dict[str, Any]:
    """The view as W&B's server would get it."""
    view = build(report, "lab", "test")._to_model()
    found: dict[str, Any] = json.loads(view.spec.model_dump_json(by_alias=True, exclude_none=True))
    return found["section"]


@pytest.fixture(scope="module")
def view(folder: Path) -> dict[str, Any]:
    return sent(Report.read(folder))


def sections(view: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {each["name"]: each for each in view["panelBankConfig"]["sections"]}


def panels(view: dict[str, Any], kind: str) -> list[dict[str, Any]]:
    """The configs of the panels of a kind."""
    every = (panel for section in sections(view).values() for panel in section["panels"])
    return [panel["config"] for panel in every if panel["viewType"] == kind]


def measured(folder: Path) -> set[str]:
    rows = (
        json.loads(line)
        for path in folder.glob("*/metrics.jsonl")
        for line in path.read_text().splitlines()
    )
    return {name for row in rows for name in row} - {"round", PER_CLASS}


def test_every_metric_has_one_panel_over_rounds_with_a_band(
    folder: Path, view: dict[str, Any]
) -> None:
    lines = panels(view, "Run History Line Plot")
    assert sorted(name for each in lines for name in each["metrics"]) == sorted(measured(folder))
    ways = {(each["xAxis"], each["groupAgg"], each["groupArea"]) for each in lines}
    assert ways == {("round", "mean", "stddev")}
    assert view["settings"]["useRunsTableGroupingInPanels"]
    assert not view["settings"]["shouldAutoGeneratePanels"]


def test_open_sections_come_first_and_the_other_chapters_are_folded_away(
    folder: Path, view: dict[str, Any]
) -> None:
    found = [(name, each["isOpen"]) for name, each in sections(view).items()]
    opened = ["Headlines", "Accuracy of each class", "Heatmaps", "Cost against accuracy"]
    opened.append("Client sampling")
    headlines = json.loads((folder / "fedavg" / "run.json").read_text())["headlines"]
    rest = {name.partition("/")[0] for name in measured(folder) - headlines.keys()}
    folded = sorted(rest - {"sampler"})
    assert {"geometry", "cost", "time"} <= {*folded}
    assert found == [(name, True) for name in opened] + [(name, False) for name in folded]


def test_headlines_say_which_direction_is_better(folder: Path, view: dict[str, Any]) -> None:
    titles = [each["config"]["chartTitle"] for each in sections(view)["Headlines"]["panels"]]
    assert titles[0] == "global/accuracy (higher is better)"
    declared = json.loads((folder / "fedavg" / "run.json").read_text())["headlines"]
    expected = {
        f"{name} ({better} is better)"
        for name, better in declared.items()
        if name in measured(folder)
    }
    assert {*titles} == expected


def test_the_runs_are_grouped_by_what_was_varied_the_best_first(
    folder: Path, view: dict[str, Any]
) -> None:
    (runs,) = view["runSets"]
    assert [key["name"] for key in runs["grouping"]] == ["choices.value.algorithm"]
    (order,) = runs["sort"]["keys"]
    assert order["key"] == {"section": "summary", "name": "global/accuracy/final"}
    assert not order["ascending"]
    (ids,) = [each["value"] for each in runs["filters"]["filters"]]
    files = folder.glob("*/run.json")
    assert {*ids} == {json.loads(path.read_text())["wandb_id"] for path in files}


def test_heatmaps_have_the_runs_side_by_side_and_a_slider_over_rounds(
    folder: Path, view: dict[str, Any]
) -> None:
    found = [each["config"] for each in sections(view)["Heatmaps"]["panels"]]
    drawn = {path.name.rpartition("_")[0] for path in folder.glob("*/figures/heatmap_*.png")}
    assert {each["mediaKeys"][0].replace("/", "_") for each in found} == drawn
    assert "heatmap_prototype_similarity" in drawn
    assert {each["gallerySettings"]["axis"] for each in found} == {"run"}


def test_everything_that_the_view_draws_is_in_the_runs_record(
    folder: Path, view: dict[str, Any]
) -> None:
    (path,) = wandb_log.run_files(folder / "fedavg")
    logged = {name for row in wandb_log.history(path) for name in row}
    summary = wandb_log.summary(path).keys()
    costs = [(each["xAxis"], each["yAxis"]) for each in panels(view, "Scatter Plot")]
    assert len(costs) == 3
    assert {name for pair in costs for name in pair} <= {f"summary:{name}" for name in summary}
    columns = {*view["runSets"][0]["runFeed"]["columnPinned"]} - {"run:displayName"}
    assert columns
    assert columns <= {f"summary:{name}" for name in summary}
    pictures = {key for each in panels(view, "Media Browser") for key in each["mediaKeys"]}
    assert "heatmap/partition" in pictures
    assert {f"{key}/_type" for key in pictures} <= logged
    (bars,) = panels(view, "Vega2")
    assert f'"value": "{PER_CLASS}"' in json.dumps(bars)
    assert PER_CLASS in summary
    assert bars["fieldSettings"] == {"label": "class", "value": "accuracy"}


def test_runs_that_differ_in_the_seed_alone_are_one_group(tmp_path: Path) -> None:
    for seed in (0, 1):
        write_run(tmp_path / str(seed), [f"seed={seed}"], accuracies(0.5, 0.6))
    view = sent(Report.read(tmp_path))
    assert [key["name"] for key in view["runSets"][0]["grouping"]] == ["choices.value.algorithm"]
    assert [*sections(view)] == ["Headlines", "Cost against accuracy"]


def test_a_picture_without_a_chapter_in_its_name_has_a_section(tmp_path: Path) -> None:
    run = write_run(tmp_path / "0", history=accuracies(0.5))
    (run / "figures").mkdir()
    for name in ("fairness_0001", "forgetting_0001", "forgetting_classes_0001"):
        (run / "figures" / f"{name}.png").touch()
    view = sent(Report.read(tmp_path))
    assert [*sections(view)][-2:] == ["fairness", "forgetting"]
    found = [each["mediaKeys"] for each in panels(view, "Media Browser")]
    assert found == [["fairness"], ["forgetting"], ["forgetting/classes"]]


def test_more_than_ten_configurations_are_all_drawn(tmp_path: Path) -> None:
    for number in range(12):
        write_run(tmp_path / str(number), [f"head.rho={number}"], accuracies(0.5))
    assert sent(Report.read(tmp_path))["settings"]["maxRuns"] == 12


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[WandbServer]:
    yield from serving(monkeypatch)


def test_the_command_saves_the_view_and_prints_its_address(
    folder: Path, view: dict[str, Any], server: WandbServer, capsys: pytest.CaptureFixture[str]
) -> None:
    main([str(folder), "--workspace", "lab/test"])
    (stored,) = server.views
    assert (stored["entityName"], stored["projectName"]) == ("lab", "test")
    assert (stored["type"], stored["displayName"]) == ("project-view", "fedexp: algorithm")
    assert without_ids(stored["spec"]["section"]) == without_ids(view)
    *_, address = capsys.readouterr().out.split()
    assert address.startswith(f"{server.address}/lab/test?nw=")


def without_ids(value: Any) -> Any:
    """The view without the random ids of its panels."""
    if isinstance(value, dict):
        return {key: without_ids(each) for key, each in value.items() if key != "__id__"}
    return [without_ids(each) for each in value] if isinstance(value, list) else value


def refusal(folder: Path, place: str = "lab/test", option: str = "--workspace") -> str:
    """The line that the command ends with."""
    with pytest.raises(SystemExit) as error:
        main([str(folder), option, place])
    (line,) = str(error.value.code).splitlines()
    return line.removeprefix(f"fedexp-report: {option} {place}: ")


def test_what_is_missing_is_one_line_that_says_what_to_do(
    folder: Path, server: WandbServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = "no such project, or not yours; a run with tracking.wandb.project=other and mode="
    assert refusal(folder, "lab/other").startswith(project)
    with monkeypatch.context() as patch:
        patch.delenv("WANDB_API_KEY")
        patch.setenv("HOME", str(folder))
        assert refusal(folder) == "not logged in to W&B; `wandb login` stores a key"
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "wandb_workspaces.workspaces", None)
        patch.setitem(sys.modules, "wandb_workspaces.expr", None)
        package = "needs wandb-workspaces; pip install 'fedexp[wandb-report]'"
        assert refusal(folder) == refusal(folder, option="--wandb") == package
    server.status = 500
    assert refusal(folder).startswith(f"{server.address} answers with HTTP 500; try again later")
    server.status = 401
    assert (
        refusal(folder)
        == f"{server.address} refuses the key; `wandb login --relogin` stores another one"
    )
    server.status = 200
    monkeypatch.setenv("WANDB_BASE_URL", "http://127.0.0.1:9")  # nobody listens
    for option in ("--workspace", "--wandb"):
        assert refusal(folder, option=option).startswith("http://127.0.0.1:9 does not answer (")
    assert not server.views
