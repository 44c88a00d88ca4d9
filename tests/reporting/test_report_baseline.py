from pathlib import Path

import pytest
from support.run_files import accuracies, write_run

from fedexp.errors import InputError
from fedexp.reporting.baseline import find_baselines
from fedexp.reporting.labels import Label
from fedexp.reporting.report import Report

BASELINE = (("algorithm", "fedavg"),)


def label(algorithm: str, mu: str = "null", beta: str = "0.3") -> Label:
    return (("algorithm", algorithm), ("regularizer.mu", mu), ("partition.beta", beta))


def test_the_same_other_keys_come_first() -> None:
    labels = [label("fedavg", "0.1"), label("fedavg"), label("fedprox", "0.1")]
    found, problems = find_baselines(labels, BASELINE)
    assert found == {labels[0]: labels[0], labels[1]: labels[1], labels[2]: labels[0]}
    assert problems == []


def test_a_key_of_one_method_alone_has_no_value_in_its_baseline() -> None:
    labels = [label("fedavg"), label("fedprox", "0.1"), label("fedprox", "0.01")]
    found, problems = find_baselines(labels, BASELINE)
    assert set(found.values()) == {labels[0]}
    assert problems == []


def test_another_partition_is_no_baseline() -> None:
    labels = [label("fedavg", beta="null"), label("fedprox", "0.1"), label("fednh", beta="null")]
    found, problems = find_baselines(labels, BASELINE)
    assert found == {labels[0]: labels[0], labels[2]: labels[0]}
    assert problems == [
        "algorithm=fedprox regularizer.mu=0.1 partition.beta=0.3: not compared with a baseline, "
        "as no algorithm=fedavg fits it"
    ]


def test_one_of_several_is_not_guessed() -> None:
    labels: list[Label] = [
        (("algorithm", name), ("a", a), ("b", b))
        for name, a, b in [("fedavg", "1", "null"), ("fedavg", "null", "2"), ("fednh", "1", "2")]
    ]
    found, problems = find_baselines(labels, BASELINE)
    assert labels[2] not in found
    assert problems[0].endswith("as 2 baselines fit")
    assert find_baselines(labels, ()) == ({}, [])


def test_a_method_without_a_seed_of_its_baseline_is_named(tmp_path: Path) -> None:
    for name, seeds in {"fedavg": (0, 1), "fednh": (2, 3), "fedprox": (1, 2)}.items():
        for seed in seeds:
            overrides = [f"algorithm={name}", f"seed={seed}"]
            write_run(tmp_path / f"{name}{seed}", overrides, accuracies(0.5))
    made = Report.read(tmp_path, baseline="algorithm=fedavg")
    assert set(made.differences["algorithm"]) == {"fedprox"}
    assert made.problems == [
        "algorithm=fednh: not compared with a baseline, as no finished run of algorithm=fedavg "
        "has one of its seeds"
    ]


def test_runs_of_a_swept_strength_are_compared(tmp_path: Path) -> None:
    for seed in (0, 1, 2):
        values = {"algorithm=fedavg": 0.5, "regularizer.mu=0.1": 0.6, "regularizer.mu=0.01": 0.7}
        for n, (override, value) in enumerate(values.items()):
            method = [override] if n == 0 else ["algorithm=fedprox", override]
            history = accuracies(value + 0.1 * seed + 0.001 * n * (seed - 1))
            write_run(tmp_path / f"{n}_{seed}", [*method, f"seed={seed}"], history)
    made = Report.read(tmp_path, baseline="algorithm=fedavg")
    results, difference, _ = made.tables()
    place = difference.columns.index("global/accuracy")
    assert [row[place] for row in difference.rows] == [
        *("+0.1000 ± 0.0025 ***", "+0.2000 ± 0.0050 ***")
    ]
    place = results.columns.index("global/accuracy")
    assert sorted(m for (_, at), m in results.marks.items() if at == place) == ["best", "second"]
    assert made.problems == []


def test_a_baseline_may_be_named_by_a_key_that_another_determines(tmp_path: Path) -> None:
    """Labels have ``loss`` alone: it was typed first, and it determines the algorithm."""
    for name, loss in {"fedavg": "cross_entropy", "moon": "moon"}.items():
        write_run(tmp_path / name, [f"loss={loss}", f"algorithm={name}"])
    made = Report.read(tmp_path, baseline="algorithm=fedavg")
    assert made.baseline == (("loss", "cross_entropy"),)
    assert made.differences["loss"].unique().tolist() == ["moon"]


def test_a_baseline_that_only_several_keys_determine_is_answered_with_the_rows(
    tmp_path: Path,
) -> None:
    parts = {"fedavg": ("a", "b"), "moon": ("c", "b"), "fednh": ("a", "d"), "own": ("c", "d")}
    for name, (loss, head) in parts.items():
        write_run(tmp_path / name, [f"loss={loss}", f"head={head}", f"algorithm={name}"])
    with pytest.raises(InputError, match="no row has the key algorithm; there are: loss=c head=d"):
        Report.read(tmp_path, baseline="algorithm=fedavg")


def test_what_every_run_has_is_no_baseline(tmp_path: Path) -> None:
    for name in ("fedavg", "fednh"):
        write_run(tmp_path / name, [f"algorithm={name}", "rounds=1"])
    assert Report.read(tmp_path, baseline="algorithm=fedavg rounds=1").baseline == BASELINE
    with pytest.raises(InputError, match="rounds=1: every run has it, so there is nothing to com"):
        Report.read(tmp_path, baseline="rounds=1")


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("algorithm=fedavgg", " (did you mean algorithm=fedavg?)"),
        ("fedavg", " (did you mean algorithm=fedavg?)"),
        ("algorithm=fedavgg head.rho=1", " (did you mean algorithm=fedavg head.rho=1?)"),
        ("algorithm=fedavg head.rho=2", ""),  # each is there, but no run has both
        ("algorithm=scaffold", ""),
    ],
)
def test_a_mistyped_baseline_is_answered_with_what_was_meant(
    typed: str, meant: str, tmp_path: Path
) -> None:
    for name, rho in (("fedavg", 1), ("fednh", 2)):
        write_run(tmp_path / name, [f"algorithm={name}", f"head.rho={rho}"], accuracies(0.5))
    write_run(tmp_path / "other", ["algorithm=fednh", "head.rho=1"], accuracies(0.5))
    with pytest.raises(InputError) as error:
        Report.read(tmp_path, baseline=typed)
    assert str(error.value).startswith(f"baseline={typed}: no run has it{meant}; there are: ")
