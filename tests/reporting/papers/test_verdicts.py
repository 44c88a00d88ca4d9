import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.run_files import accuracies, write_methods, write_run

from fedexp.reporting.interval import AtLeast
from fedexp.reporting.papers.cells import Cell
from fedexp.reporting.papers.table import paper_tables
from fedexp.reporting.papers.verdicts import Verdict, judge
from fedexp.reporting.report import Report

TABLE_1 = {
    "table": "Table 1",
    "metric": "global/accuracy",
    "statistic": "final",
    "values": {"algorithm=fedavg": 0.6, "algorithm=fednh": 0.7},
}
TABLE_3 = TABLE_1 | {
    "table": "Table 3",
    "overrides": ["clients.per_round=30"],
    "values": {"algorithm=fedavg": 0.65, "algorithm=fednh": 0.75},
}
PAPER = [TABLE_1, TABLE_3]


def run(folder: Path, *overrides: str, value: float = 0.5, **more: Any) -> None:
    """A run of one round, or of two with ``rounds=2``."""
    overrides = ("experiment=a/b", *overrides)
    history = accuracies(*[value] * (1 + ("rounds=2" in overrides)))
    write_run(folder, overrides, history, paper=PAPER, **more)


def verdicts(folder: Path) -> dict[tuple[str, str], Verdict]:
    found = Report.read(folder).verdicts
    return {(each.cell.table, each.cell.method): each for each in found}


def test_a_run_answers_the_row_whose_overrides_it_has(tmp_path: Path) -> None:
    run(tmp_path / "0", "algorithm=fednh", "clients.per_round=30")
    found = verdicts(tmp_path)
    assert found["Table 3", "algorithm=fednh"].cell.ours == {0: 0.5}
    assert found["Table 3", "algorithm=fednh"].cell.differs == ()
    assert found["Table 3", "algorithm=fednh"].words == "baseline not run"
    others = [each for key, each in found.items() if key != ("Table 3", "algorithm=fednh")]
    assert {each.words for each in others} == {"not run"}
    assert found["Table 3", "algorithm=fedavg"].cell.command == (
        "fedexp experiment=a/b algorithm=fedavg clients.per_round=30"
    )


def test_a_shorter_run_answers_with_what_differs(tmp_path: Path) -> None:
    run(tmp_path / "0", "algorithm=fednh", "rounds=60", "seed=0", "engine=serial", finished=False)
    cell = verdicts(tmp_path)["Table 1", "algorithm=fednh"].cell
    assert cell.differs == ("rounds=60",)
    assert (cell.rounds, cell.planned) == (1, 60)
    paper = next(table for table in Report.read(tmp_path).tables() if "Table 1" in table.title)
    assert paper.notes == [
        "Differs from the protocol: rounds=60, 1 of 60 rounds so far.",
        "Not run: fedexp experiment=a/b algorithm=fedavg",
    ]


def test_a_method_of_two_overrides_is_a_baseline_of_methods_of_one(tmp_path: Path) -> None:
    values = {"algorithm=fedavg personalization=finetune_best": 0.6, "algorithm=fednh": 0.7}
    rows = [TABLE_1 | {"values": values}]
    tuned = ["experiment=a/b", "algorithm=fedavg", "personalization=finetune_best"]
    write_run(tmp_path / "0", tuned, accuracies(0.5), paper=rows)
    write_run(tmp_path / "1", ["experiment=a/b", "algorithm=fednh"], accuracies(0.6), paper=rows)
    write_run(tmp_path / "2", ["experiment=a/b", "algorithm=fedavg"], accuracies(0.1), paper=rows)
    baseline, other = Report.read(tmp_path).verdicts
    assert (baseline.words, baseline.cell.ours, baseline.cell.differs) == ("baseline", {0: 0.5}, ())
    assert other.words == "one seed, not tested"
    assert other.gain is not None
    assert other.gain.mean == pytest.approx(0.1)
    paper = next(table for table in Report.read(tmp_path).tables() if "Table 1" in table.title)
    assert [row[0] for row in paper.rows] == ["fedavg finetune_best", "fednh"]


def test_a_method_without_an_option_of_its_row_is_said_to_be_another(tmp_path: Path) -> None:
    """FedGELA's baselines are tuned at each client; without the tuning a run is not this row's."""
    tuned = "algorithm=fedavg personalization=finetune_best"
    rows = [TABLE_1 | {"metric": "personal/accuracy_test_split", "values": {tuned: 0.6}}]
    history = [{"global/accuracy": 0.5, "personal/accuracy_test_split": 0.7}]
    write_run(tmp_path / "0", ["experiment=a/b", "algorithm=fedavg"], history, paper=rows)
    (verdict,) = Report.read(tmp_path).verdicts
    assert (verdict.words, verdict.cell.ours) == ("not run", {})
    warning = (
        "fedavg finetune_best: was run without personalization=finetune_best, so it is not this "
        "row's method."
    )
    tables = {each.title: each for each in Report.read(tmp_path).tables()}
    (own,) = [each for title, each in tables.items() if "Table 1" in title]
    assert warning in own.notes
    personal = tables["Personal accuracy in the papers"]
    assert [row[0] for row in personal.rows] == ["FedNH", "FedSC", "FedGELA", "FedPTR", "HiCS-FL"]
    write_run(tmp_path / "1", ["experiment=a/b", *tuned.split()], history, paper=rows)
    tables = {each.title: each for each in Report.read(tmp_path).tables()}
    (own,) = [each for title, each in tables.items() if "Table 1" in title]
    assert warning not in own.notes


def test_rows_that_differ_in_rounds_share_a_baseline(tmp_path: Path) -> None:
    slow = {
        "table": "T",
        "metric": "rounds_to/0.5",
        "statistic": "final",
        "overrides": ["rounds=9"],
    }
    rows = [
        slow | {"values": {"sampler=weighted": 4}},
        slow | {"overrides": [], "values": {"sampler=hics": 2}},
    ]
    history = accuracies(0.1, 0.2, 0.3, *[0.6] * 6)
    overrides = ["experiment=a/b", "sampler=weighted", "rounds=9"]
    write_run(tmp_path / "0", overrides, history, paper=rows)
    write_run(tmp_path / "1", ["experiment=a/b", "sampler=hics"], history[1:], paper=rows)
    weighted, hics = Report.read(tmp_path).verdicts
    assert weighted.words == "baseline"
    assert weighted.cell.differs == ()
    assert hics.published_gain == -2
    assert hics.gain is not None
    assert hics.gain.mean == -1  # 3 rounds against 4


@pytest.mark.parametrize(
    ("paper", "words"),
    [
        ("hics", "ahead; paper's gain outside"),
        ("fedsc", "no such statistic in the paper"),
    ],
)
def test_smoothed_curves_count_where_they_are_asked_for(
    paper: str, words: str, tmp_path: Path
) -> None:
    """A single peak reaches the target early, its smoothed curve does not."""
    slow = {"table": "T", "metric": "rounds_to/0.5", "statistic": "final", "overrides": []}
    rows = [slow | {"values": {"sampler=weighted": 18, "sampler=hics": 2}}]
    rising = [n / 30 for n in range(26)]
    peak = [*rising[:3], 0.5, *rising[4:]]
    for seed, offset in enumerate((0.21, 0.21, 0.18)):
        early = [value + offset for value in rising]
        for name, values in {"weighted": peak, "hics": early}.items():
            overrides = [f"experiment={paper}/b", f"sampler={name}", f"seed={seed}"]
            write_run(tmp_path / f"{name}{seed}", overrides, accuracies(*values), paper=rows)
    raw = Report.read(tmp_path).verdicts
    assert [each.cell.ours[0] for each in raw] == [4, 10]
    assert raw[1].words == "behind unlike the paper; paper's gain outside"
    weighted, hics = Report.read(tmp_path, smooth=True).verdicts
    assert weighted.cell.metric == "rounds_to_smoothed/0.5"
    assert weighted.cell.ours[0] == pytest.approx(16, abs=1)  # 15 / 30 is 0.5
    assert hics.cell.ours[0] == 10
    assert hics.words == words
    assert any(
        "rounds_to_smoothed/0.5" in t.title for t in Report.read(tmp_path, smooth=True).tables()
    )


def test_runs_of_one_cell_that_differ_are_rows_of_their_own(tmp_path: Path) -> None:
    for seed in range(3):
        for n, (name, value) in enumerate([("fedavg", 0.5), ("fednh", 0.7)]):
            overrides = (f"algorithm={name}", f"seed={seed}")
            own = value + 0.001 * n * seed
            run(tmp_path / f"{n}{seed}", *overrides, value=own)
            run(tmp_path / f"{n}{seed}_short", *overrides, "rounds=2", value=own - 0.3 * n)
    table = next(table for table in Report.read(tmp_path).tables() if "Table 1" in table.title)
    words = table.columns.index("verdict")
    assert [(row[0], row[words]) for row in table.rows] == [
        ("fedavg", "baseline"),
        ("fedavg rounds=2", "baseline"),
        ("fednh", "ahead; paper's gain outside"),
        # 0.4 against the short baseline's 0.5
        ("fednh rounds=2", "behind unlike the paper; paper's gain outside"),
    ]
    assert table.marks == {(3, words): "alarm"}


def test_the_baseline_is_the_run_most_like_it(tmp_path: Path) -> None:
    run(tmp_path / "0", "algorithm=fedavg", value=0.9)
    run(tmp_path / "1", "algorithm=fedavg", "rounds=2", value=0.5)
    run(tmp_path / "2", "algorithm=fednh", "rounds=2", "head.rho=1", value=0.6)
    verdicts = [each for each in Report.read(tmp_path).verdicts if each.cell.ran]
    (fednh,) = [each for each in verdicts if each.cell.method == "algorithm=fednh"]
    assert fednh.gain is not None
    assert fednh.gain.mean == pytest.approx(0.1)


def test_what_all_rows_of_a_method_changed_stands_below_the_table(tmp_path: Path) -> None:
    few = ["data.subset=500", "local.epochs=2"]
    run(tmp_path / "0", "algorithm=fedavg", *few, value=0.5)
    run(tmp_path / "1", "algorithm=fedavg", *few, "optimizer.lr=1", value=0.6)
    run(tmp_path / "2", "algorithm=fednh", *few, "head.rho=1", value=0.7)
    table = next(table for table in Report.read(tmp_path).tables() if "Table 1" in table.title)
    assert [row[0] for row in table.rows] == ["fedavg", "fedavg optimizer.lr=1", "fednh"]
    assert [note for note in table.notes if note.startswith("Differs")] == [
        "Differs from the protocol: data.subset=500, local.epochs=2.",
        "Differs from the protocol (fedavg): optimizer.lr=1.",
        "Differs from the protocol (fednh): head.rho=1.",
    ]


def cell(method: str, published: float, ours: Sequence[float], seeds: int | None = None) -> Cell:
    values = dict(enumerate(ours))
    seeds = max(1, len(ours)) if seeds is None else seeds
    return Cell(
        "a/b", "T", "global/accuracy", "final", method, (), published, None, values, seeds=seeds
    )


@pytest.mark.parametrize(
    ("ours", "words"),
    [
        ([0.59, 0.60, 0.61], "the same difference in each seed, not tested"),
        ([0.58, 0.60, 0.63], "ahead; paper's gain inside"),  # 0.09, 0.1 and 0.12
        ([0.52, 0.53, 0.545], "ahead; paper's gain outside"),
        ([0.40, 0.41, 0.425], "behind unlike the paper; paper's gain outside"),
        ([0.40, 0.60, 0.55], "no difference shown; paper's gain inside"),
        ([0.48, 0.50, 0.52], "no difference shown; paper's gain outside"),
        ([0.58, 0.59], "two seeds, not tested"),
        ([0.40, 0.41], "two seeds, not tested"),
        ([0.40, 0.60], "two seeds, not tested"),
        ([0.56], "one seed, not tested"),
        ([0.51], "one seed, not tested"),
        ([0.49], "one seed, not tested"),
    ],
)
def test_words(ours: Sequence[float], words: str) -> None:
    baseline = cell("algorithm=fedavg", 0.6, [0.49, 0.5, 0.51])
    assert judge(cell("algorithm=fednh", 0.7, ours), baseline).words == words


def test_words_where_no_gain_was_published() -> None:
    baseline = cell("algorithm=fedavg", 0.7, [0.5, 0.5, 0.5])

    def words(*ours: float) -> str:
        return judge(cell("algorithm=ditto", 0.7, ours), baseline).words

    assert words(0.5, 0.5, 0.5) == "no difference shown; paper's gain inside"
    assert words(*[0.5000001] * 3) == "no difference shown; paper's gain inside"
    assert words(0.45, 0.6, 0.5) == "no difference shown; paper's gain inside"
    assert words(0.6, 0.61, 0.6) == "ahead unlike the paper; paper's gain outside"
    assert words(0.5) == "one seed, not tested"
    assert words(0.5, 0.5) == "two seeds, not tested"


def test_the_interval_decides_whether_the_published_gain_is_inside() -> None:
    # Differences 0.02, 0.04, 0.06: mean 0.04, half width 4.302653 * 0.02 / sqrt(3) = 0.0497.
    ours = [0.52, 0.54, 0.56]
    baseline = cell("algorithm=fedavg", 0.6, [0.5, 0.5, 0.5])
    outside = judge(cell("algorithm=fednh", 0.7, ours), baseline)  # 0.1 is 0.06 away
    assert outside.words == "no difference shown; paper's gain outside"
    inside = judge(cell("algorithm=fednh", 0.685, ours), baseline)
    assert inside.words == "no difference shown; paper's gain inside"
    surer = [0.535, 0.540, 0.545]  # half width 0.0124
    near = judge(cell("algorithm=fednh", 0.652, surer), baseline)
    assert near.words == "ahead; paper's gain inside"
    assert near.smallest_gain is None
    equal = judge(cell("ditto", 0.5, [0.4, 0.5, 0.6]), cell("fedavg", 0.5, [0.4, 0.5, 0.6]))
    assert equal.words.startswith("no difference shown")
    assert equal.smallest_gain is None
    # Three pairs show 3.264 deviations with 80 % power; see tests/reporting/test_interval.py.
    assert outside.smallest_gain == pytest.approx(3.264 * 0.02, rel=1e-3)


def test_ahead_is_what_is_better() -> None:
    """Of rounds and of deviations over clients, fewer are better."""
    for metric, better in (("rounds_to/0.7", {}), ("personal/std", {"personal/std": "lower"})):
        names = {"metric": metric, "better": better}
        baseline = replace(cell("algorithm=fedavg", 0.6, [0.5, 0.5, 0.5]), **names)
        ours = replace(cell("algorithm=fednh", 0.5, [0.39, 0.4, 0.41]), **names)
        assert judge(ours, baseline).words == "ahead; paper's gain inside"
        worse = replace(ours, published=0.7)
        assert judge(worse, baseline).words.startswith("ahead unlike the paper")


def test_seeds_below_the_target_count_at_their_bound() -> None:
    """HiCS-FL's shape: five seeds reach the target, the sixth does not in 200 rounds."""
    target = Cell("a/b", "T", "rounds_to/0.7", "final", "m", (), 60, None, {}, seeds=3)
    ours = replace(target, ours={0: 40.0, 1: 150.0, 2: AtLeast(200)})
    baseline = replace(target, method="b", published=149, ours={0: 130.0, 1: 120.0, 2: 114.0})
    found = judge(ours, baseline)
    # Differences -90, 30, 86 have the mean 8.667; the paper's is -89.
    assert found.gain is not None
    assert found.gain.mean == pytest.approx(26 / 3)
    assert found.gain.at_bound == 1
    assert found.words == "no difference shown; paper's gain inside"
    never = replace(ours, ours=dict.fromkeys(range(3), AtLeast(200)))
    assert judge(never, baseline).words == "target not reached"
    other = judge(replace(baseline, method="m"), replace(never, method="b"))
    assert (other.words, other.gain) == ("baseline below target", None)
    # The only common seed is at its bound.
    assert judge(ours, replace(baseline, ours={2: 114.0}, seeds=1)).words == "target not reached"


def test_the_best_round_stands_beside_the_last_five_measurements(tmp_path: Path) -> None:
    rows = [TABLE_1 | {"statistic": "best"}]
    for seed in range(3):
        # Best rounds: a gain of 0.1. The last five measurements: 0.5 and (0.5 * 4 + 0.6) / 5.
        for name, peak in {"fedavg": (0.8, 0.5), "fednh": (0.899 + 0.001 * seed, 0.6)}.items():
            overrides = ["experiment=a/b", f"algorithm={name}", f"seed={seed}"]
            values = accuracies(peak[0], 0.5, 0.5, 0.5, 0.5, peak[1])
            history = [row for each in values for row in (each, {"train/loss": 1.0})]
            write_run(tmp_path / f"{name}{seed}", overrides, history, paper=rows)
    made = Report.read(tmp_path)
    verdict = made.verdicts[1]
    assert verdict.words == "ahead; paper's gain inside"
    assert verdict.recent_gain is not None
    assert verdict.recent_gain.mean == pytest.approx(0.02)
    (table,) = paper_tables(made.verdicts)
    row = dict(zip(table.columns, table.rows[1], strict=True))
    assert row["gain, ours"] == "+0.1000 ± 0.0025 ***"
    assert row["gain, last 5"] == "+0.0200 ± 0.0000"
    assert any(note.startswith("gain, last 5: ") for note in table.notes)


def test_what_the_seeds_change_is_below_the_table(tmp_path: Path) -> None:
    for seed in range(2):
        overrides = (f"seed={seed}", "algorithm=fedavg", "partition.draw_seed=66")
        run(tmp_path / str(seed), *overrides)
    table = next(table for table in Report.read(tmp_path).tables() if "Table 1" in table.title)
    note = (
        "The seed changes initial weights, cohorts and batches; the partition is the same for all "
        "seeds with partition.draw_seed=66."
    )
    assert note in table.notes


def test_words_without_numbers() -> None:
    baseline = cell("algorithm=fedavg", 0.6, [0.5])
    assert judge(baseline, baseline).words == "baseline"
    method = cell("algorithm=fednh", 0.7, [], seeds=0)
    assert judge(method, baseline).words == "not run"
    ran = cell("algorithm=fednh", 0.7, [0.6])
    empty = cell("algorithm=fedavg", 0.6, [], seeds=0)
    assert judge(ran, empty).words == "baseline not run"
    target = Cell("a/b", "T", "rounds_to/0.7", "final", "m", (), 9, None, {}, seeds=1)
    assert judge(target, baseline).words == "target not reached"
    going = replace(target, rounds=3, planned=9)
    assert judge(going, baseline).words == "not finished"
    unmeasured = cell("algorithm=fednh", 0.7, [])
    assert judge(unmeasured, baseline).words == "not measured"
    short = replace(target, metric="rounds_to_smoothed/0.7", rounds=20, measured=12)
    assert judge(short, baseline).words == "too few rounds to smooth"
    assert judge(replace(short, measured=13), baseline).words == "target not reached"
    diverged = cell("algorithm=fednh", 0.7, [math.nan])
    assert judge(diverged, baseline).words == "diverged"
    assert math.isnan(cell("algorithm=fednh", 0.7, [0.5, math.nan]).std)


def test_the_gain_of_some_seeds_alone_is_no_verdict() -> None:
    """One of three seeds measured the metric."""
    some = cell("algorithm=fednh", 0.7, [0.6], seeds=3)
    baseline = cell("algorithm=fedavg", 0.6, [0.5, 0.5, 0.5])
    found = judge(some, baseline)
    assert (found.words, found.gain) == ("in 1 of 3 seeds", None)
    other = judge(replace(baseline, method="m"), replace(some, method="b"))
    assert (other.words, other.gain) == ("baseline in 1 of 3 seeds", None)


def test_words_where_only_the_baseline_has_no_value() -> None:
    ran = cell("algorithm=fednh", 0.7, [0.6])
    target = Cell("a/b", "T", "rounds_to/0.7", "final", "m", (), 9, None, {}, seeds=1)
    assert judge(ran, target).words == "baseline below target"
    assert judge(ran, replace(target, rounds=3, planned=9)).words == "baseline not finished"
    assert judge(ran, cell("algorithm=fedavg", 0.6, [])).words == "baseline not measured"
    other = replace(target, ours={5: 0.5}, method="algorithm=fedavg")
    assert judge(ran, other).words == "no seed in common"
    assert judge(ran, cell("algorithm=fedavg", 0.6, [math.nan])).words == "baseline diverged"


def test_seeds_below_the_target_are_counted(tmp_path: Path) -> None:
    paper = [
        {
            "table": "Table 1",
            "metric": "rounds_to/0.7",
            "statistic": "final",
            "values": {"algorithm=fedavg": 9, "algorithm=fednh": 3},
        }
    ]
    fedavg = [accuracies(0.1, 0.7), accuracies(0.1, 0.2)]
    methods = {"fedavg": fedavg, "fednh": [accuracies(0.8, 0.7)] * 2}
    write_methods(tmp_path, methods, "experiment=a/b", paper=paper)
    made = Report.read(tmp_path)
    assert made.frames["paper"]["seeds"].tolist() == [2, 2]
    assert made.frames["paper"]["at_bound"].tolist() == [1, 0]
    (table,) = paper_tables(made.verdicts)
    rows = {row[0]: dict(zip(table.columns, row, strict=True)) for row in table.rows}
    assert (rows["fedavg"]["ours"], rows["fedavg"]["n"]) == (">= 2 (1 of 2)", "2")
    # One round, and 1 against at least 2 rounds.
    assert rows["fednh"]["gain, ours"] == "-1 ± 0 (1 of 2)"
    assert rows["fednh"]["verdict"] == "two seeds, not tested"
    assert any(note.startswith("(1 of 3) after a number") for note in table.notes)


def test_of_several_runs_with_one_seed_the_longest_counts(tmp_path: Path) -> None:
    for n, (engine, values) in enumerate([("serial", (0.5, 0.8)), ("vectorized", (0.2,))]):
        overrides = ["experiment=a/b", "algorithm=fednh", f"engine={engine}"]
        write_run(tmp_path / str(n), overrides, accuracies(*values), paper=PAPER, rounds=2)
    (ran,) = [each.cell for each in Report.read(tmp_path).verdicts if each.cell.ran]
    assert ran.ours == {0: 0.8}
    assert (ran.rounds, ran.repeated) == (2, True)
    table = next(table for table in Report.read(tmp_path).tables() if "Table 1" in table.title)
    assert "Of several runs with one seed the longest counts." in table.notes


def test_rows_of_an_older_run_may_have_fewer_methods(tmp_path: Path) -> None:
    older = TABLE_1 | {"values": {"algorithm=fedavg": 0.6}}
    overrides = ["experiment=a/b", "algorithm=fedavg"]
    write_run(tmp_path / "0", overrides, accuracies(0.5), paper=[older])
    run(tmp_path / "1", "algorithm=fednh", value=0.6)
    found = verdicts(tmp_path)
    assert found["Table 1", "algorithm=fednh"].words == "one seed, not tested"


def test_an_unfinished_run_whose_last_rounds_measured_nothing_has_no_mean(tmp_path: Path) -> None:
    rows = [TABLE_1 | {"statistic": "mean_last5"}]
    history = [*accuracies(0.6), *({"train/loss": 1.0} for _ in range(6))]
    for name in ("fedavg", "fednh"):
        overrides = ["experiment=a/b", f"algorithm={name}"]
        write_run(tmp_path / name, overrides, history, paper=rows, rounds=20, finished=False)
    made = Report.read(tmp_path)
    assert [each.words for each in made.verdicts] == ["not finished", "not finished"]
    assert "mean_last5" not in set(made.values.query("metric == 'global/accuracy'")["statistic"])


def test_an_unfinished_run_is_in_no_mean_and_no_verdict(tmp_path: Path) -> None:
    """After one of three rounds a method is not behind the finished baseline."""
    for seed in range(4):
        run(tmp_path / f"baseline{seed}", "algorithm=fedavg", f"seed={seed}", value=0.5)
        early = tmp_path / f"early{seed}"
        run(early, "algorithm=fednh", f"seed={seed}", value=0.1, rounds=3, finished=False)
    found = verdicts(tmp_path)["Table 1", "algorithm=fednh"]
    assert (found.words, found.gain, found.cell.seeds) == ("not finished", None, 4)
    for seed in range(3):
        run(tmp_path / f"late{seed}", "algorithm=fednh", f"seed={seed}", value=0.599 + 0.001 * seed)
    found = verdicts(tmp_path)["Table 1", "algorithm=fednh"]
    assert (found.words, found.cell.seeds) == ("ahead; paper's gain inside", 3)


def test_another_reading_of_a_method_answers_its_row_by_itself(tmp_path: Path) -> None:
    run(tmp_path / "0", "algorithm=fednh", value=0.7)
    run(tmp_path / "1", "algorithm=fednh_paper", value=0.4)
    run(tmp_path / "2", "algorithm=fednh_own", value=0.1)
    cells = [each.cell for each in Report.read(tmp_path).verdicts if each.cell.ran]
    assert [(cell.table, cell.differs, cell.ours) for cell in cells] == [
        ("Table 1", (), {0: 0.7}),
        ("Table 1", ("algorithm=fednh_paper",), {0: 0.4}),
    ]
    (paper,) = (table for table in Report.read(tmp_path).tables() if "Table 1" in table.title)
    assert [row[0] for row in paper.rows] == ["fedavg", "fednh", "fednh fednh_paper"]
