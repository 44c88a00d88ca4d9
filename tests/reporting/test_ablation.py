"""The table and the pictures of an ablation, from run folders that are written by hand."""

import shutil
from pathlib import Path

import pytest
from support.run_files import accuracies, write_run

from fedexp.reporting.ablation import TITLE
from fedexp.reporting.ablation_rows import FILE, read_plain, row_name, write_plain
from fedexp.reporting.report import Report

FULL = {"head": "prototype", "loss": "moon", "sampler": "random"}
ROWS = {
    "full method": {},
    "without head": {"head": "linear"},
    "without loss": {"loss": "cross_entropy"},
    "baseline (without head and loss)": {"head": "linear", "loss": "cross_entropy"},
}
PLAIN = {"head": "linear", "loss": "cross_entropy", "sampler": "random"}


def write_ablation(folder: Path, *typed: str, lost: float = 0.1) -> None:
    """Two seeds of each row; each part that is removed costs ``lost``."""
    for number, removed in enumerate(ROWS.values()):
        for seed in (0, 1):
            place = folder / f"{number}_{seed}"
            overrides = [*typed, *(f"{group}={option}" for group, option in removed.items())]
            accuracy = 0.9 - lost * len(removed) + 0.01 * seed
            history = accuracies(accuracy)
            choices = FULL | removed
            write_run(place, overrides, history, seed=seed, choices=choices)
    write_plain(folder, PLAIN)


def test_each_row_is_compared_with_the_full_method(tmp_path: Path) -> None:
    write_ablation(tmp_path / "sweep")
    made = Report.read(tmp_path / "sweep")
    (table,) = (each for each in made.tables() if each.title == TITLE)
    column = table.columns.index("global/accuracy")
    assert [(row[0], row[1], row[column][:7]) for row in table.rows] == [
        ("without head", "2", "-0.1000"),
        ("without loss", "2", "-0.1000"),
        ("baseline (without head and loss)", "2", "-0.2000"),
    ]
    assert set(made.frames["ablation"]["row"]) == {row[0] for row in table.rows}


def test_each_metric_has_a_picture(tmp_path: Path) -> None:
    write_ablation(tmp_path / "sweep")
    (drawing,) = Report.read(tmp_path / "sweep").further_drawings()
    assert drawing.name == "ablation_global_accuracy"
    (axes,) = drawing.draw().axes
    assert [bar.get_width() for bar in axes.patches] == pytest.approx([-0.1, -0.1, -0.2])


def test_two_sweeps_are_told_apart(tmp_path: Path) -> None:
    write_ablation(tmp_path / "a", "partition.beta=0.1")
    write_ablation(tmp_path / "b", "partition.beta=3", lost=0.2)
    made = Report.read(tmp_path)
    gains = made.ablation.frame.query("metric == 'global/accuracy' and statistic == 'final'")
    found = dict(zip(gains["row"], gains["difference"].round(6), strict=True))
    assert found["partition.beta=0.1: without head"] == -0.1
    assert found["partition.beta=3: without head"] == -0.2
    assert len(found) == 6


def test_the_full_method_of_an_earlier_sweep_is_that_of_the_ablation(tmp_path: Path) -> None:
    """With the same seed, and with one that the ablation lacks."""
    for seed in (0, 2):
        folder = tmp_path / "earlier" / str(seed)
        write_run(folder, [f"seed={seed}"], accuracies(0.9), seed=seed, choices=FULL)
    write_ablation(tmp_path / "later")
    made = Report.read([tmp_path / "earlier", tmp_path / "later"])
    assert {*made.ablation.frame["row"]} == {*ROWS} - {"full method"}
    assert {*made.ablation.frame["seeds"]} == {2}


def test_rows_without_their_full_method_are_named(tmp_path: Path) -> None:
    write_ablation(tmp_path)
    for run in tmp_path.glob("0_*"):
        shutil.rmtree(run)
    made = Report.read(tmp_path)
    assert not made.ablation.full
    assert made.problems == [
        f"{row}: not in the table of the ablation, as its full method is not among the runs, or "
        "several rows could be it"
        for row in (
            "head=linear loss=moon",
            "head=prototype loss=cross_entropy",
            "head=linear loss=cross_entropy",
        )
    ]


@pytest.mark.parametrize("content", ["", "[]", "{", '{"head": "linear"}'])
def test_other_sweeps_are_no_ablation(content: str, tmp_path: Path) -> None:
    for seed in (0, 1):
        write_run(tmp_path / f"run{seed}", [], accuracies(0.5), seed=seed)
    (tmp_path / FILE).write_text(content)
    made = Report.read(tmp_path)
    assert not made.ablation.full
    assert "ablation" not in made.frames


def test_names_of_rows() -> None:
    assert row_name([], ["head"]) == "full method"
    assert row_name(["head"], ["head"]) == "without head"
    three = ["head", "loss", "sampler"]
    assert row_name(three, three) == "baseline (without all)"
    assert read_plain(Path("absent")) == {}
