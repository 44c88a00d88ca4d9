import math
from pathlib import Path

import numpy as np
import pytest
from support.run_files import accuracies, write_methods, write_run

from fedexp.errors import InputError
from fedexp.reporting.interval import AtLeast, Interval, paired_difference
from fedexp.reporting.report import Report
from fedexp.reporting.statistics import cost_to, smooth, smoothed_rounds_to


def test_mean_and_deviation_over_seeds(tmp_path: Path) -> None:
    for seed, value in enumerate((0.5, 0.6, 0.7)):
        write_run(tmp_path / str(seed), [f"seed={seed}"], accuracies(0.9, value))
    frame = Report.read(tmp_path).results.set_index(["metric", "statistic"])
    # Of 0.5, 0.6, 0.7: mean 0.6, variance (0.01 + 0 + 0.01) / 2.
    final = frame.loc[("global/accuracy", "final")]
    assert final["mean"] == pytest.approx(0.6)
    assert final["std"] == pytest.approx(0.1)
    assert (final["n"], final["seeds"]) == (3, 3)
    assert frame.loc[("global/accuracy", "best"), "mean"] == pytest.approx(0.9)
    # Means of (0.9 + value) / 2.
    assert frame.loc[("global/accuracy", "mean_last5"), "mean"] == pytest.approx(0.75)


def test_a_seed_that_missed_a_target_counts_with_all_its_rounds(tmp_path: Path) -> None:
    write_run(tmp_path / "0", ["seed=0"], accuracies(0.5, 0.7))
    write_run(tmp_path / "1", ["seed=1"], accuracies(0.5, 0.5))
    made = Report.read(tmp_path, targets=[0.5, 0.6])
    frame = made.results.set_index("metric")
    assert frame.loc["rounds_to/0.5", "mean"] == 1
    missed = frame.loc["rounds_to/0.6"]
    assert missed["mean"] == 2  # two rounds, and at least two rounds
    assert math.isnan(missed["std"])
    assert (missed["n"], missed["at_bound"], missed["seeds"]) == (2, 1, 2)
    assert missed["mark"] == ""
    table = made.tables()[0]
    assert table.rows[0][table.columns.index("rounds_to/0.6")] == ">= 2 (1 of 2)"
    assert any(note.startswith("(1 of 3) after a number") for note in table.notes)


def test_rounds_to_the_best_of_the_baseline_of_the_same_cell_and_seed(tmp_path: Path) -> None:
    """FedGELA, Table 9."""
    histories = {
        ("fedavg", 0.1, 0): (0.2, 0.5, 0.4),
        ("fedavg", 0.1, 1): (0.2, 0.3, 0.6),
        ("fedavg", 0.5, 0): (0.7, 0.9, 0.8),
        ("fedgela", 0.1, 0): (0.5, 0.6, 0.7),  # 0.5 after one round
        ("fedgela", 0.1, 1): (0.5, 0.6, 0.7),  # 0.6 after two
        ("fedgela", 0.5, 0): (0.5, 0.6, 0.7),  # never 0.9
        ("moon", 0.1, 2): (0.5, 0.6, 0.7),  # no baseline with this seed
    }
    for (method, beta, seed), values in histories.items():
        overrides = [f"algorithm={method}", f"partition.beta={beta}", f"seed={seed}"]
        write_run(tmp_path / f"{method}_{beta}_{seed}", overrides, accuracies(*values))
    made = Report.read(tmp_path, baseline="algorithm=fedavg")
    name = "rounds_to/best_of_baseline"
    rows = made.values[made.values["metric"] == name]
    columns = (rows["algorithm"], rows["partition.beta"], rows["seed"], rows["value"])
    assert {(a, float(b), s): v for a, b, s, v in zip(*columns, strict=True)} == {
        ("fedavg", 0.1, 0): 2,
        ("fedavg", 0.1, 1): 3,
        ("fedavg", 0.5, 0): 2,
        ("fedgela", 0.1, 0): 1,
        ("fedgela", 0.1, 1): 2,
        ("fedgela", 0.5, 0): 3,  # at least
    }
    table = made.tables()[0]
    shown = {tuple(row[:2]): row[table.columns.index(name)] for row in table.rows}
    assert shown["fedgela", "0.1"] == "1.5 ± 0.7"
    assert shown["fedgela", "0.5"] == ">= 3 (1 of 1)"
    assert shown["moon", "0.1"] == ""
    assert name not in set(Report.read(tmp_path).values["metric"])


def test_costs_to_a_target() -> None:
    history = [
        {"global/accuracy": 0.1, "cost/download_bytes": 10, "cost/upload_bytes": 1}
        | {"time/select_s": 0.5, "time/probe_s": 1.0, "time/train_s": 2.0, "time/eval_s": 9.0},
        {"cost/download_bytes": 20, "cost/upload_bytes": 2, "time/train_s": 3.0},
        {"global/accuracy": 0.6, "cost/download_bytes": 30, "cost/upload_bytes": 3}
        | {"time/train_s": 4.0, "time/server_s": 0.25},
        {"global/accuracy": 0.9, "cost/download_bytes": 40, "cost/upload_bytes": 4},
    ]
    # The third round is the first; 10 + 1 + 20 + 2 + 30 + 3; 0.5 + 1 + 2 + 3 + 4 + 0.25.
    assert cost_to(history, 0.6) == {
        "rounds_to/0.6": {"final": 3},
        "bytes_to/0.6": {"final": 66},
        "seconds_to/0.6": {"final": 10.75},
    }
    # Never reached: all four rounds, all bytes and all seconds are a lower bound.
    bounds = {name: values["final"] for name, values in cost_to(history, 0.95).items()}
    assert bounds == {"rounds_to/0.95": 4, "bytes_to/0.95": 110, "seconds_to/0.95": 10.75}
    assert all(isinstance(value, AtLeast) for value in bounds.values())
    assert cost_to([{"train/loss": 1.0}], 0.95) == {}


def test_costs_that_were_not_measured_are_absent() -> None:
    assert cost_to(accuracies(0.6), 0.5) == {"rounds_to/0.5": {"final": 1}}


def test_smoothing_keeps_cubics_and_short_curves() -> None:
    cubic = np.arange(20.0) ** 3 - 5 * np.arange(20.0)
    np.testing.assert_allclose(smooth(cubic), cubic, atol=1e-8)
    short = np.array([0.0, 1.0, 0.0])
    np.testing.assert_array_equal(smooth(short), short)


def test_the_smoothed_curve_reaches_a_target_later_than_a_single_peak() -> None:
    # A line to 1 in round 21, with one peak in round 5 that the filter flattens. The weight of a
    # value at its own place is 25 / 143 for window 13, order 3: 0.2 + 25 / 143 * 0.6 < 0.69.
    values = [n / 20 for n in range(21)]
    values[4] = 0.8
    history = accuracies(*values)
    assert cost_to(history, 0.69)["rounds_to/0.69"] == {"final": 5}
    assert smoothed_rounds_to(history, 0.69) == {"rounds_to_smoothed/0.69": {"final": 15}}
    assert smoothed_rounds_to(history[:12], 0.3) == {}
    for target in (0.79, 1.5):  # 0.79 in round 17, where fewer than six rounds follow
        never = smoothed_rounds_to(history, target)[f"rounds_to_smoothed/{target}"]["final"]
        assert (never, type(never)) == (21, AtLeast)


def test_paired_interval_by_hand() -> None:
    # Differences 0.1, 0.2, 0.3: mean 0.2, s = 0.1; t(0.975; 2) = 4.302653: 0.1 t / sqrt(3).
    found = paired_difference({0: 0.6, 1: 0.8, 2: 0.7, 9: 0.1}, {0: 0.5, 1: 0.6, 2: 0.4, 8: 0.9})
    assert found is not None
    assert found.mean == pytest.approx(0.2)
    assert found.half_width == pytest.approx(0.248414, abs=1e-6)
    assert found.n == 3
    assert not found.excludes_zero
    assert Interval(0.2, 0.1, 3).excludes_zero
    assert found.contains(0.448)
    assert not found.contains(0.449)
    assert found.deviation == pytest.approx(0.1)
    # t = 0.2 / (0.1 / sqrt(3)) = 3.4641; with 2 degrees of freedom p = 1 - t / sqrt(t^2 + 2).
    assert found.p_value == pytest.approx(1 - math.sqrt(12 / 14))


def test_one_pair_has_no_interval_and_strangers_no_difference() -> None:
    one = paired_difference({0: 0.6}, {0: 0.5})
    assert one is not None
    assert math.isnan(one.half_width)
    assert math.isnan(one.p_value)
    assert not one.contains(0.1)
    assert not one.excludes_zero
    assert paired_difference({0: 0.6}, {1: 0.5}) is None


def test_differences_are_to_the_row_with_the_same_other_keys(tmp_path: Path) -> None:
    values = {("fedavg", 0.1): 0.5, ("fedavg", 0.5): 0.6, ("fednh", 0.1): 0.7, ("fednh", 0.5): 0.7}
    for n, ((name, rho), value) in enumerate(values.items()):
        for seed in (0, 1):
            overrides = [f"algorithm={name}", f"head.rho={rho}", f"seed={seed}"]
            # The second seed is better by 0.1 for all: the pairs' differences have no spread.
            write_run(tmp_path / f"{n}_{seed}", overrides, accuracies(value + 0.1 * seed))
    made = Report.read(tmp_path, baseline="algorithm=fedavg")
    frame = made.differences
    frame = frame[(frame["metric"] == "global/accuracy") & (frame["statistic"] == "final")]
    assert frame["algorithm"].tolist() == ["fednh", "fednh"]
    assert frame["head.rho"].tolist() == ["0.1", "0.5"]
    assert frame["difference"].tolist() == pytest.approx([0.2, 0.1])
    assert frame["half_width"].tolist() == pytest.approx([0, 0], abs=1e-12)
    assert made.tables()[1].title == "Difference to algorithm=fedavg"


def test_two_pairs_are_in_no_family(tmp_path: Path) -> None:
    values = {"fedavg": (0.5, 0.5, 0.5), "fednh": (0.60, 0.62, 0.61), "fedprox": (0.4, 0.6)}
    write_methods(tmp_path, {name: list(map(accuracies, own)) for name, own in values.items()})
    frame = Report.read(tmp_path, baseline="algorithm=fedavg").differences
    shown = frame.query("metric == 'global/accuracy' and statistic == 'final'")
    rows = shown.set_index("algorithm")
    assert rows.loc["fedprox", ["pairs", "p_value"]].tolist() == pytest.approx([2, 1])
    assert rows.loc["fedprox", ["p_bh", "p_holm"]].isna().all()
    assert rows.loc["fednh", "p_holm"] == rows.loc["fednh", "p_value"]


def test_runs_of_one_config_and_seed_count_once(tmp_path: Path) -> None:
    write_run(tmp_path / "0", [], accuracies(0.5), rounds=2)
    write_run(tmp_path / "1", [], accuracies(0.5, 0.7))
    made = Report.read(tmp_path)
    assert [run.folder.name for run in made.runs] == ["1"]
    assert made.problems == [
        f"{tmp_path / '0'}: left out, as {tmp_path / '1'} has the same config and seed"
    ]


def test_the_shown_metrics(tmp_path: Path) -> None:
    row = {"personal/accuracy_uniform": 0.5, "personal/accuracy_local": 0.6}
    row |= {"global/accuracy": 0.4, "global/loss": 1.0, "geometry/classifier_angle": 90.0}
    published = {"table": "Table 1", "metric": "personal/accuracy_local", "statistic": "final"}
    write_run(tmp_path / "0", [], [row], paper=[published | {"values": {"algorithm=fedavg": 0.6}}])
    assert Report.read(tmp_path).metrics == ["global/accuracy", "personal/accuracy_local"]
    asked = Report.read(tmp_path, metrics=["geometry/classifier_angle"])
    assert asked.tables()[0].rows == [["1", "90.0000"]]
    with pytest.raises(InputError, match=r"metrics=x: not measured; there are: .*global"):
        Report.read(tmp_path, metrics=["x"])
    with pytest.raises(InputError, match=r"not measured; did you mean global/accuracy\?$"):
        Report.read(tmp_path, metrics=["global/acuracy"])


def test_differences_with_seeds_below_the_target(tmp_path: Path) -> None:
    curves = {
        "fedavg": [accuracies(0.5, 0.7)] * 3,
        "fednh": [accuracies(0.7, 0.8), accuracies(0.5, 0.6), accuracies(0.5, 0.6)],
        "moon": [accuracies(0.1, 0.2)] * 3,
    }
    write_methods(tmp_path, curves)
    made = Report.read(tmp_path, baseline="algorithm=fedavg", targets=[0.65, 0.9])
    rows = made.differences.query("metric == 'rounds_to/0.65' and algorithm == 'fednh'")
    (row,) = rows.to_dict("records")
    assert (row["pairs"], row["seeds"], row["at_bound"]) == (3, 3, 2)
    assert row["difference"] == pytest.approx(-1 / 3)  # 1 - 2, and twice 2 - 2
    table = made.tables()[1]
    shown = {line[0]: dict(zip(table.columns, line, strict=True)) for line in table.rows}
    assert shown["fednh"]["rounds_to/0.65"] == "-0.3 ± 1.4 (2 of 3)"
    assert shown["moon"]["rounds_to/0.65"] == "target not reached"
    assert "rounds_to/0.9" not in table.columns
    assert made.problems == ["target 0.9: no run reached it"]


def test_the_difference_of_some_pairs_alone_is_not_shown(tmp_path: Path) -> None:
    row = {"global/accuracy": 0.5}
    histories = [[row | {"drift/angle": 1.0}], [row], [row]]
    write_methods(tmp_path, {"fedavg": histories, "fednh": histories})
    made = Report.read(tmp_path, baseline="algorithm=fedavg", metrics=["drift/angle"])
    found = made.differences.set_index("metric").loc["drift/angle"].iloc[0]
    assert (found["pairs"], found["seeds"]) == (1, 3)
    assert math.isnan(found["difference"])
    table = made.tables()[1]
    assert table.rows[0] == ["fednh", "3", "1 of 3"]
    assert "1 of 3: pairs with values, too few for a mean." in table.notes


def test_the_best_round_has_no_star(tmp_path: Path) -> None:
    methods = {"fedavg": [accuracies(0.5, 0.1)] * 3, "fednh": [accuracies(0.7, 0.1)] * 3}
    write_methods(tmp_path, methods)
    made = Report.read(tmp_path, baseline="algorithm=fedavg", statistic="best")
    table = made.tables()[1]
    assert table.rows[0][table.columns.index("global/accuracy")] == "+0.2000 ± 0.0000"
    assert any(note.startswith("best chooses its round by the test data") for note in table.notes)


def test_a_difference_to_what_diverged(tmp_path: Path) -> None:
    histories = [[{"global/loss": 1.0}]] * 2
    write_methods(tmp_path, {"fedavg": histories, "fednh": [[{"global/loss": None}]] * 2})
    made = Report.read(tmp_path, baseline="algorithm=fedavg", metrics=["global/loss"])
    assert made.tables()[1].rows[0][-1] == "diverged"


def test_swept_rounds_are_a_label_and_no_rounds_done(tmp_path: Path) -> None:
    for rounds, done in ((2, (2, 2, 2)), (4, (4, 4, 3))):
        for seed in (0, 1, 2):
            overrides = [f"rounds={rounds}", f"seed={seed}"]
            history = accuracies(*[0.1 * rounds] * done[seed])
            folder = tmp_path / f"{rounds}_{seed}"
            write_run(folder, overrides, history, finished=done[seed] == rounds)
    made = Report.read(tmp_path, baseline="rounds=2")
    assert [row[:2] for row in made.tables()[0].rows] == [["2", "3"], ["4", "2"]]
    assert made.tables()[1].rows[0][:3] == ["4", "2", "+0.2000 ± 0.0000"]
    note = "n = 2: two pairs of runs, not tested: no star, whatever the interval."
    assert note in made.tables()[1].notes
    assert set(made.values["rounds_done"]) == {2, 3, 4}


def test_a_statistic_that_no_run_has(tmp_path: Path) -> None:
    write_run(tmp_path / "0", [], accuracies(0.5, 0.6))
    with pytest.raises(InputError, match=r"^statistic=at_best_validation: no run has it$"):
        Report.read(tmp_path, statistic="at_best_validation")
    with pytest.raises(InputError, match=r"^against=time: is none of round, seconds, bytes$"):
        Report.read(tmp_path, against="time")


def test_a_statistic_that_a_metric_lacks_is_left_blank(tmp_path: Path) -> None:
    rows = [{"global/accuracy": 0.5, "geometry/classifier_angle": 90.0}]
    write_run(tmp_path / "0", [], rows)
    names = ["global/accuracy", "geometry/classifier_angle"]
    made = Report.read(tmp_path, statistic="best", metrics=names)
    assert made.tables()[0].rows == [["1", "0.5000", ""]]


def test_the_mean_of_the_last_five_rounds_of_an_asked_metric_by_hand(tmp_path: Path) -> None:
    """Seven rounds of an angle, in one of the last five it was not measured."""
    angles = [10.0, 20.0, 30.0, None, 70.0, 80.0, 40.0]
    rows = [
        {"global/accuracy": 0.5} | ({} if each is None else {"geometry/angle": each})
        for each in angles
    ]
    write_run(tmp_path / "0", [], rows)
    made = Report.read(tmp_path, statistic="mean_last5", metrics=["geometry/angle"])
    expected = (30 + 70 + 80 + 40) / 4
    assert made.tables()[0].rows == [["1", f"{expected:.4f}"]]
