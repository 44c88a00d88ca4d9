"""What differs between compared rows beyond what was varied, and the setting in the head."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from support.run_files import write_run

from fedexp.reporting.files import FORMATS, write
from fedexp.reporting.report import Report

METHODS: dict[str, tuple[Any, str, str]] = {
    "fedavg": (None, "sample_weighted", "linear"),
    "fednh": (10, "uniform", "prototype"),
    "fedgela": (20, "sample_weighted", "etf"),
}


def write_methods(folder: Path, **changes: Any) -> None:
    """Three methods as their presets set them: clipping, averaging and heads differ."""
    for n, (name, (clip, aggregator, head)) in enumerate(METHODS.items()):
        for beta in (0.1, 1):
            write_run(
                folder / f"{n}_{beta}",
                [f"algorithm={name}", f"partition.beta={beta}"],
                choices={"aggregator": aggregator, "head": head, "data": "digits"},
                local={"grad_clip": clip, "epochs": 5},
                aggregator={"_target_": f"a.{aggregator}", "weighting": aggregator},
                head={"_target_": f"h.{head}", f"key_of_{head}": 1},
                partition={"beta": beta},
                **changes,
            )


def rows(report: Report) -> Mapping[str, list[str]]:
    (table,) = [each for each in report.tables() if each.title.startswith("What else differs")]
    assert table.columns == ["key", "fedavg", "fednh", "fedgela"]
    return {row[0]: row[1:] for row in table.rows}


def test_clipping_averaging_and_heads_that_presets_set_are_seen(tmp_path: Path) -> None:
    write_methods(tmp_path)
    assert rows(Report.read(tmp_path)) == {
        "local.grad_clip": ["null", "10", "20"],
        "aggregator": ["sample_weighted", "uniform", "sample_weighted"],
        "head": ["linear", "prototype", "etf"],
    }


def test_the_name_of_an_option_alone_is_no_difference(tmp_path: Path) -> None:
    """aggregator=uniform is aggregator=sample_weighted with another weighting."""
    for n, (name, option) in enumerate([("fedavg", "sample_weighted"), ("fednh", "uniform")]):
        write_run(
            tmp_path / str(n),
            [f"algorithm={name}"],
            choices={"aggregator": option},
            aggregator={"_target_": "a.Average", "weighting": option.removeprefix("sample_")},
        )
    (table,) = [each for each in Report.read(tmp_path).tables() if each.title.startswith("What")]
    assert table.rows == [["aggregator.weighting", "weighted", "uniform"]]


@pytest.mark.parametrize("socket", ["aggregator", "compression", "coordination"])
def test_rows_that_differ_in_a_part_of_the_server_are_compared(socket: str, tmp_path: Path) -> None:
    for n, option in enumerate(("one", "other")):
        part = {socket: {"_target_": f"a.{option}"}}
        write_run(tmp_path / str(n), [f"{socket}={option}"], local={"grad_clip": n + 1}, **part)
    (table,) = [each for each in Report.read(tmp_path).tables() if each.title.startswith("What")]
    assert table.rows == [["local.grad_clip", "1", "2"]]


def test_what_was_varied_and_what_is_alike_is_not_listed(tmp_path: Path) -> None:
    for rho in (0.1, 0.5):
        write_run(tmp_path / str(rho), [f"head.rho={rho}"], local={"grad_clip": 10})
    titles = [each.title for each in Report.read(tmp_path).tables()]
    assert titles == ["Results", "Runs"]


def test_rows_of_other_data_differ_on_purpose(tmp_path: Path) -> None:
    """Tiny ImageNet has other rounds than CIFAR-10, for every method."""
    for n, (data, rounds) in enumerate([("cifar10", 3), ("tiny", 5)]):
        for name, clip in (("fedavg", None), ("fednh", 10)):
            write_run(
                tmp_path / f"{n}_{clip or 0:02}",
                [f"data={data}", f"algorithm={name}"],
                [{"global/accuracy": 0.5}] * rounds,
                local={"grad_clip": clip},
            )
    (table,) = [each for each in Report.read(tmp_path).tables() if each.title.startswith("What")]
    assert table.rows == [["local.grad_clip", "null", "10"]]


def test_values_that_depend_on_the_data_stand_side_by_side(tmp_path: Path) -> None:
    for data, clip in (("cifar10", 10), ("tiny", 20)):
        for n, name in enumerate(("fedavg", "fednh")):
            write_run(
                tmp_path / f"{clip}_{n}",
                [f"data={data}", f"algorithm={name}"],
                local={"grad_clip": clip if name == "fednh" else None},
            )
    (table,) = [each for each in Report.read(tmp_path).tables() if each.title.startswith("What")]
    assert table.rows == [["local.grad_clip", "null", "10 / 20"]]


def test_lists_in_a_config_are_compared_as_values(tmp_path: Path) -> None:
    for n, (name, alphas) in enumerate([("fedavg", [0.1, 1]), ("fednh", [0.1, {"deep": [1]}])]):
        write_run(tmp_path / str(n), [f"algorithm={name}"], optimizer={"betas": alphas})
    (table,) = [each for each in Report.read(tmp_path).tables() if each.title.startswith("What")]
    assert table.rows == [["optimizer.betas", "[0.1,1]", "[0.1,{'deep': [1]}]"]]


def test_the_head_of_every_format_names_the_setting(tmp_path: Path) -> None:
    write_methods(tmp_path / "runs", rounds=30)
    made = Report.read(tmp_path / "runs")
    counts, setting = made.heading
    assert counts == "6 runs, 6 configurations, 1 seed"
    assert setting == "data=digits, partition.beta=1/0.1, 10 of 20 clients a round, 30 rounds"
    for path in write(made, tmp_path / "report", FORMATS):
        if path.suffix in (".md", ".html", ".tex"):
            assert setting in path.read_text(), path.suffix
