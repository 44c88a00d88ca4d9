from pathlib import Path
from typing import Any

import pytest
from support.run_files import write_run

from fedexp.reporting.files import FORMATS, write
from fedexp.reporting.labels import label_runs, short_texts, show, text
from fedexp.reporting.report import Report
from fedexp.reporting.runs import read_runs


def labels(folder: Path) -> list[str]:
    return [text(label) for label in label_runs(read_runs([folder])[0])]


def test_seeds_and_records_are_no_difference(tmp_path: Path) -> None:
    write_run(tmp_path / "0", ["seed=0", "tracking.tensorboard=true"])
    write_run(tmp_path / "1", ["seed=1"])
    assert labels(tmp_path) == ["all", "all"]


@pytest.mark.parametrize("key", ["split_seed", "seed"])
def test_a_second_seed_that_follows_the_seed_is_no_difference(tmp_path: Path, key: str) -> None:
    """As with ``data.split_seed=${seed}`` or ``data.seed=${seed}``; one method lacks a seed."""
    for name, seeds in {"fedavg": (0, 1, 2), "fednh": (1, 2)}.items():
        for seed in seeds:
            folder = tmp_path / f"{name}{seed}"
            write_run(folder, [f"algorithm={name}", f"seed={seed}"], data={key: seed})
    report = Report.read(tmp_path)
    assert report.keys == ["algorithm"]
    assert set(report.results["seeds"]) == {2, 3}
    assert [table.title for table in report.tables()] == ["Results", "Runs"]


def test_a_second_seed_that_is_chosen_is_a_difference(tmp_path: Path) -> None:
    for seed in (0, 1):
        for split in (0, 1):
            write_run(tmp_path / f"{seed}{split}", [f"seed={seed}", f"data.split_seed={split}"])
    assert labels(tmp_path) == [f"data.split_seed={split}" for split in (0, 1)] * 2


def test_a_key_that_another_determines_is_left_out(tmp_path: Path) -> None:
    for n, (algorithm, head) in enumerate([("fedavg", "Linear"), ("fednh", "Prototype")]):
        for rho in (0.1, 0.5):
            overrides = [f"algorithm={algorithm}", f"head.rho={rho}"]
            node = {"_target_": head, "rho": 0}
            write_run(tmp_path / f"{n}_{rho}", overrides, head=node)
    # head._target_ follows from the algorithm; rho does not.
    assert labels(tmp_path) == [
        "algorithm=fedavg head.rho=0.1",
        "algorithm=fedavg head.rho=0.5",
        "algorithm=fednh head.rho=0.1",
        "algorithm=fednh head.rho=0.5",
    ]


def test_an_experiment_is_named_by_what_it_sets(tmp_path: Path) -> None:
    for n, count in enumerate((20, 100)):
        clients = {"count": count, "per_round": 10}
        write_run(tmp_path / str(n), [f"experiment=a/{n}"], clients=clients)
    assert labels(tmp_path) == ["clients.count=20", "clients.count=100"]


def test_searches_are_named_by_their_methods(tmp_path: Path) -> None:
    for search, algorithm in {"lr": "fedavg", "fednh": "fednh"}.items():
        typed = [f"search={search}", *(["algorithm=fedavg"] if search == "lr" else [])]
        for lr in (0.01, 0.1):
            folder = tmp_path / f"{search}_{lr}"
            chosen = {"search": search, "algorithm": algorithm}
            write_run(folder, [*typed, f"optimizer.lr={lr}"], choices=chosen)
    assert sorted(labels(tmp_path)) == [
        "algorithm=fedavg optimizer.lr=0.01",
        "algorithm=fedavg optimizer.lr=0.1",
        "algorithm=fednh optimizer.lr=0.01",
        "algorithm=fednh optimizer.lr=0.1",
    ]


def test_costs_tell_runs_apart_only_where_nothing_else_does(tmp_path: Path) -> None:
    for n, device in enumerate(("cpu", "cuda")):
        write_run(tmp_path / "same" / str(n), [], engine={"device": device})
        write_run(tmp_path / "seeds" / str(n), [f"seed={n}"], engine={"device": device})
    assert labels(tmp_path / "same") == ["engine.device=cpu", "engine.device=cuda"]
    assert labels(tmp_path / "seeds") == ["all", "all"]


def test_jobs_are_in_the_order_they_were_launched(tmp_path: Path) -> None:
    for n in range(12):
        write_run(tmp_path / str(n), [f"head.rho={n}"])
    assert labels(tmp_path) == [f"head.rho={n}" for n in range(12)]


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (None, "null"),
        (True, "true"),
        (0.10, "0.1"),
        (10.0, "10"),
        (0.12345678, "0.12345678"),
        ([0.1, 1], "[0.1,1]"),
        ("mlp", "mlp"),
    ],
)
def test_values_are_shown_as_one_types_them(value: object, shown: str) -> None:
    assert show(value) == shown


def test_legends_name_methods_by_value_and_numbers_by_key() -> None:
    label = (("algorithm", "fednh"), ("head.rho", "0.1"), ("head.fixed", "true"))
    assert short_texts([label, ()]) == ["fednh rho=0.1 fixed=true", "all"]


def test_groups_come_before_values_even_if_a_value_alone_tells_the_runs_apart(
    tmp_path: Path,
) -> None:
    write_run(tmp_path / "0", ["rounds=6", "sampler=hics"])
    write_run(tmp_path / "1", ["rounds=10", "sampler=random"])
    assert labels(tmp_path) == ["sampler=hics", "sampler=random"]


@pytest.mark.parametrize(
    "values",
    [
        ([0.001, 0.5], [0.001, 0.2], [0.001]),
        ([[1, 2], [3]], [[1, 2], [4]], None),
        ([{"rate": [1]}], [{"rate": [2]}], []),
        (0.1, [0.1], True),
    ],
    ids=["lists", "lists of lists", "mappings in lists", "a number, a list and a truth value"],
)
def test_any_value_of_a_config_can_tell_runs_apart(tmp_path: Path, values: tuple[Any, ...]) -> None:
    """HiCS-FL's settings differ in a list; the whole report is made, figures against it, too."""
    for n, value in enumerate(values):
        row = [{"global/accuracy": 0.1 * n}, {"global/accuracy": 0.2 * n}]
        write_run(tmp_path / "runs" / str(n), [], row, partition={"alphas": value})
    made = Report.read(tmp_path / "runs")
    assert made.keys == ["partition.alphas"]
    assert len(made.configurations) == 3
    write(made, tmp_path / "report", FORMATS, every_figure=True)
    assert made.problems == []
