import io
import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pandas as pd
import pytest
from rich.console import Console
from support.run_files import HEADLINES, accuracies, write_methods, write_run

from fedexp.cli.report import main
from fedexp.measures.cost import Cost
from fedexp.reporting.files import FORMATS, write
from fedexp.reporting.latex import escape, latex, short_headings
from fedexp.reporting.markdown import markdown
from fedexp.reporting.marks import direction, rank
from fedexp.reporting.report import Report
from fedexp.reporting.table import Table, number, order_metrics
from fedexp.reporting.terminal import print_table

TABLE = Table(
    "Results",
    ["method", "n", "global/accuracy"],
    [["a|b_c", "3", "0.9000 ± 0.0100"], ["d", "3", "0.8000"], ["e", "3", "0.1000"]],
    {(0, 2): "best", (1, 2): "second", (2, 2): "alarm"},
    ["A note, 95 %."],
)


def test_bold_is_what_no_paired_interval_tells_from_the_best() -> None:
    """Of the best's seeds 0.70, 0.72, 0.74: one has a wide interval, one a narrow one."""
    best = {0: 0.70, 1: 0.72, 2: 0.74}
    wide = {0: 0.74, 1: 0.62, 2: 0.71}  # differences of 0.04, -0.10, -0.03
    near = {seed: value - 0.001 * (seed + 9) for seed, value in best.items()}  # 0.009 to 0.011
    far = {seed: value - 0.1 for seed, value in best.items()}
    found = {"best": best, "wide": wide, "near": near, "far": far}
    assert rank(found, "higher") == {"best": "best", "wide": "best", "near": "second"}
    assert rank({"best": best, "far": far, "near": near}, "lower") == {
        "far": "best",
        "near": "second",
    }
    assert rank(found, None) == {}
    assert rank({"best": best}, "higher") == {}


def test_equal_means_and_rows_without_a_common_seed_are_not_told_apart() -> None:
    same, equal, far = (dict.fromkeys((0, 1, 2), each) for each in (0.70001, 0.7, 0.1))
    assert rank({0: same, 1: equal, 2: far}, "higher") == {0: "best", 1: "best", 2: "second"}
    assert rank({0: same, 1: {5: 0.2, 6: 0.2, 7: 0.2}}, "higher") == {0: "best", 1: "best"}
    two_in_common = {0: 0.2, 1: 0.21, 5: 0.2}
    assert rank({0: same, 1: two_in_common}, "higher") == {0: "best", 1: "best"}


def test_the_legend_and_the_marks_are_in_every_format(tmp_path: Path) -> None:
    write_two_methods(tmp_path / "runs", 0.1)
    made = Report.read(tmp_path / "runs", baseline="algorithm=fedavg")
    assert made.results.query("metric == 'global/accuracy' and statistic == 'final'")[
        "mark"
    ].tolist() == ["second", "best"]
    write(made, tmp_path / "report")
    md, tex, page = (
        (tmp_path / "report" / f"report.{kind}").read_text() for kind in ("md", "tex", "html")
    )
    assert "**0.6000 ± 0.0110**" in md
    assert "<u>0.5000 ± 0.0100</u>" in md
    assert r"+0.1000 ± 0.0025 \*\*\*" in md
    assert r"\textbf{0.6000 $\pm$ 0.0110}" in tex
    assert r"+0.1000 $\pm$ 0.0025 ***" in tex
    assert re.search(r'class="best" data-number="0.6000"', page)
    assert ">+0.1000 ± 0.0025 ***<" in page
    for text in (md, tex, page):
        assert "Bold: the best, and each row that the 95" in text
        assert "interval excludes 0; " in text
    results = pd.read_csv(tmp_path / "report" / "results.csv").query("statistic == 'final'")
    assert results["mark"].tolist()[:2] == ["second", "best"]
    differences = pd.read_csv(tmp_path / "report" / "differences.csv")
    assert differences.query("metric == 'global/accuracy'")["excludes_zero"].all()


def write_two_methods(folder: Path, gain: float) -> None:
    """Three seeds each of two methods, whose accuracies differ by about the gain in each seed."""
    values = {"fedavg": (0.49, 0.5, 0.51), "fednh": (0.489 + gain, 0.5 + gain, 0.511 + gain)}
    write_methods(folder, {name: list(map(accuracies, own)) for name, own in values.items()})


def test_without_a_certain_difference_there_is_no_star(tmp_path: Path) -> None:
    write_two_methods(tmp_path, 0.0)
    results, difference, _ = Report.read(tmp_path, baseline="algorithm=fedavg").tables()
    assert difference.rows[0][2] == "+0.0000 ± 0.0025"
    assert not any(note.startswith("*") for note in difference.notes)
    assert set(results.marks.values()) == {"best"}


def test_notes_below_differences_are_of_what_is_shown(tmp_path: Path) -> None:
    """FedNH misses FedAvg's best, a column that is not asked for, and measured two of three."""
    for seed in range(3):
        for name, value in {"fedavg": 0.6, "fednh": 0.5}.items():
            row = {"global/accuracy": value * (1 + 0.01 * seed)} | (
                {"global/loss": 1.0} if seed else {}
            )
            overrides = [f"algorithm={name}", f"seed={seed}"]
            write_run(tmp_path / f"{name}{seed}", overrides, [row])
    made = Report.read(tmp_path, baseline="algorithm=fedavg", metrics=["global/accuracy"])
    mean, _ = made.tables()[1].notes
    assert mean.startswith("Mean of the differences")
    made = Report.read(tmp_path, baseline="algorithm=fedavg", metrics=["global/loss"])
    assert made.tables()[1].notes[1:] == ["2 of 3: pairs with values, too few for a mean."]


def test_marks_are_within_the_methods_of_one_setting(tmp_path: Path) -> None:
    for n, (name, rho, value) in enumerate(
        [("fedavg", 1, 0.5), ("fednh", 1, 0.6), ("fedavg", 2, 0.9), ("fednh", 2, 0.8)]
    ):
        for seed in (0, 1, 2):
            overrides = [f"algorithm={name}", f"head.rho={rho}", f"seed={seed}"]
            write_run(tmp_path / f"{n}{seed}", overrides, accuracies(value))
    alone = Report.read(tmp_path).tables()[0]
    assert alone.marks == {(2, 3): "best", (3, 3): "second"}
    together = Report.read(tmp_path, baseline="algorithm=fedavg").tables()[0]
    marks = {place: mark for place, mark in together.marks.items() if place[1] == 3}
    assert marks == {(0, 3): "second", (1, 3): "best", (2, 3): "best", (3, 3): "second"}


def test_standard_errors_are_not_compared(tmp_path: Path) -> None:
    first = {"personal/accuracy_local": 0.5, "personal/standard_error_local": 0.01}
    second = {"personal/accuracy_local": 0.6, "personal/standard_error_local": 0.02}
    write_methods(tmp_path, {"fedavg": [[first]] * 3, "fednh": [[second]] * 3})
    made = Report.read(tmp_path, baseline="algorithm=fedavg")
    rows = made.results.set_index(["algorithm", "statistic"])
    assert rows.loc[("fednh", "standard_error"), "mean"] == pytest.approx(0.02)
    assert rows.loc[("fednh", "final"), "mark"] == "best"
    assert set(made.results.loc[made.results["mark"] != "", "statistic"]) == {
        *("final", "best", "mean_last5")
    }
    assert "standard_error" not in set(made.differences["statistic"])


def two_methods(folder: Path, headlines: dict[str, str]) -> Report:
    """Three seeds each of two methods, with a metric of a user's own measure: 3 and 2 degrees."""
    first, second = ({"global/accuracy": 0.5, "drift/angle": angle} for angle in (3.0, 2.0))
    methods = {"fedavg": [[first]] * 3, "fednh": [[second]] * 3}
    write_methods(folder, methods, headlines=headlines)
    return Report.read(folder, metrics=() if headlines else ["drift/angle"])


@pytest.mark.parametrize(("better", "best"), [("lower", 1), ("higher", 0)])
def test_a_headline_of_a_users_own_is_shown_with_its_best(
    better: str, best: int, tmp_path: Path
) -> None:
    table = two_methods(tmp_path, HEADLINES | {"drift/angle": better}).tables()[0]
    assert table.columns == ["algorithm", "n", "global/accuracy", "drift/angle"]
    assert [row[3] for row in table.rows] == ["3.0000 ± 0.0000", "2.0000 ± 0.0000"]
    assert {row: mark for (row, column), mark in table.marks.items() if column == 3} == {
        best: "best",
        1 - best: "second",
    }


def test_a_metric_without_a_known_direction_gets_no_mark(tmp_path: Path) -> None:
    table = two_methods(tmp_path, {}).tables()[0]
    assert [row[2] for row in table.rows] == ["3.0000 ± 0.0000", "2.0000 ± 0.0000"]
    assert table.marks == {}


def test_the_direction_of_a_metric() -> None:
    better = {"drift/angle": "lower", "global/accuracy": "higher"}
    assert direction("drift/angle", better) == "lower"
    assert direction("global/accuracy", better) == "higher"
    assert direction("rounds_to/0.5", better) == "lower"  # costs need no headline
    assert direction("geometry/classifier_angle", better) is None
    patterns = {"personal/std*": "lower", "personal/*": "higher", "cost/*": "lower"} | better
    assert direction("personal/std_uniform", patterns) == "lower"
    assert direction("personal/worst_decile_uniform", patterns) == "higher"
    assert direction("cost/upload_bytes", patterns) == "lower"
    assert direction("geometry/classifier_angle", patterns) is None


def test_the_fewest_bytes_are_the_best(tmp_path: Path) -> None:
    """A run says so itself: its measure of costs declares it."""
    few = {"global/accuracy": 0.5, "cost/upload_bytes": 100.0, "time/train_s": 9.0}
    many = {"global/accuracy": 0.5, "cost/upload_bytes": 200.0, "time/train_s": 10.0}
    write_methods(tmp_path, {"fedavg": [[few]] * 3, "scaffold": [[many]] * 3})
    metrics = ("cost/upload_bytes", "time/train_s")
    made = Report.read(tmp_path, metrics=metrics)
    assert made.tables()[0].marks == {}  # runs of an older version do not say it
    for file in tmp_path.glob("*/run.json"):
        content = json.loads(file.read_text())
        content["directions"] = dict(Cost.directions)
        file.write_text(json.dumps(content))
    table = Report.read(tmp_path, metrics=metrics).tables()[0]
    assert table.marks == {(0, 2): "best", (1, 2): "second", (0, 3): "best", (1, 3): "second"}


def test_runs_that_disagree_about_a_metric_give_it_no_direction(tmp_path: Path) -> None:
    for n, better in enumerate(("lower", "higher")):
        write_run(
            tmp_path / str(n),
            [f"seed={n}"],
            [{"global/accuracy": 0.5, "drift/angle": 1.0}],
            headlines={"global/accuracy": "higher", "drift/angle": better},
        )
    assert Report.read(tmp_path).better == {"global/accuracy": "higher"}


def test_a_method_without_the_shown_metric_has_finished_runs(tmp_path: Path) -> None:
    first = {"global/accuracy": 0.5, "cost/bytes": 8}
    second = {"personal/accuracy_local": 0.6, "cost/bytes": 8}
    write_methods(tmp_path, {"fedavg": [[first]] * 2, "fedper": [[second]] * 2})
    results, _ = Report.read(tmp_path, metrics=["global/accuracy"]).tables()
    assert results.rows[1] == ["fedper", "2", ""]
    assert not any(note.startswith("n = 0") for note in results.notes)
    results, _ = Report.read(tmp_path, metrics=["cost/bytes"], statistic="best").tables()
    assert results.rows == [["fedavg", "2", ""], ["fedper", "2", ""]]
    assert "cost/bytes: has no best, only final and mean_last5." in results.notes
    assert not any(note.startswith("n = 0") for note in results.notes)


def test_two_seeds_are_too_few_for_marks(tmp_path: Path) -> None:
    methods = {"fedavg": (0.5, 0.51), "fednh": (0.6, 0.611)}
    write_methods(tmp_path, {name: list(map(accuracies, own)) for name, own in methods.items()})
    results = Report.read(tmp_path).tables()[0]
    assert results.marks == {}
    assert "n = 1 or 2: fewer than three seeds; nothing there is marked as best." in results.notes


def test_one_seed_is_said_and_nothing_is_marked(tmp_path: Path) -> None:
    write_methods(tmp_path, {"fedavg": [accuracies(0.5)], "fednh": [accuracies(0.6)]})
    made = Report.read(tmp_path, baseline="algorithm=fedavg")
    results, difference, _ = made.tables()
    assert results.marks == {}
    assert "n = 1 or 2: fewer than three seeds; nothing there is marked as best." in results.notes
    assert difference.rows == [["fednh", "1", "+0.1000", "+0"]]  # accuracy, rounds to its best
    assert "n = 1: one pair of runs, so no interval." in difference.notes


@pytest.mark.parametrize(
    ("value", "metric", "shown"),
    [
        (0.12345, "global/accuracy", "0.1235"),
        (12.0, "rounds_to/0.5", "12"),
        (12.5, "rounds_to/0.5", "12.5"),
        (1.5e6, "bytes_to/0.5", "1.5 MB"),
        (3.25, "seconds_to/0.5", "3.25 s"),
        (float("nan"), "global/loss", "diverged"),
    ],
)
def test_digits(value: float, metric: str, shown: str) -> None:
    assert number(value, metric) == shown


def test_order_of_metrics() -> None:
    mixed = ["rounds_to/0.5", "global/loss", "personal/accuracy_local", "global/accuracy"]
    assert order_metrics(mixed) == [
        *("global/accuracy", "personal/accuracy_local", "global/loss", "rounds_to/0.5")
    ]


def test_markdown() -> None:
    assert markdown(TABLE).splitlines() == [
        *("### Results", "", "| method | n | global/accuracy |", "| --- | --- | --- |"),
        r"| a\|b_c | 3 | **0.9000 ± 0.0100** |",
        "| d | 3 | <u>0.8000</u> |",
        "| e | 3 | **0.1000** (!) |",
        *("", "A note, 95 %."),
    ]


def test_latex() -> None:
    lines = latex(TABLE).splitlines()
    assert r"\caption{Results. A note, 95 \%. Columns: accuracy is global/accuracy.}" in lines
    assert r"method & n & accuracy \\" in lines
    assert r"\begin{tabular}{lrr}" in lines
    assert lines[lines.index(r"\midrule") + 1 : lines.index(r"\bottomrule")] == [
        r"a|b\_c & 3 & \textbf{0.9000 $\pm$ 0.0100} \\",
        r"d & 3 & \underline{0.8000} \\",
        r"e & 3 & \textbf{0.1000} (!) \\",
    ]
    assert escape(r"50% of {a_b} \ ~") == (r"50\% of \{a\_b\} \textbackslash{} \textasciitilde{}")
    assert escape("[0.1,1]") == "{[}0.1,1]"  # behind a line break, [ begins an argument


def test_latex_headings_are_short_where_they_differ() -> None:
    names = ["partition.beta", "n", "global/accuracy", "personal/accuracy_local", "rounds_to/0.5"]
    assert short_headings(names) == ["beta", "n", "accuracy", "accuracy local", "rounds to/0.5"]
    alike = ["global/loss", "train/loss", "best - fedavg, global/loss"]
    assert short_headings(alike) == alike


def test_a_latex_file_names_its_package(tmp_path: Path) -> None:
    write_run(tmp_path / "run", history=accuracies(0.5))
    write(Report.read(tmp_path / "run"), tmp_path / "report", ["tex"], False)
    first, *lines = (tmp_path / "report" / "report.tex").read_text().splitlines()
    assert first == r"% These tables need \usepackage{booktabs} in the preamble."
    assert lines.count(r"\toprule") == len(Report.read(tmp_path / "run").tables())


def test_the_terminal_shows_what_fits() -> None:
    columns, rows = [*TABLE.columns, "global/loss"], [[*row, "0.5000"] for row in TABLE.rows]
    for width, cut in ((200, False), (30, True)):
        said = printed(replace(TABLE, columns=columns, rows=rows), width)
        assert "a|b_c" in said
        assert "0.9000 ± 0.0100" in said
        assert ("0.5000" in said) is not cut
        assert ("in the files (--to DIR): global/loss" in said) is cut


def printed(table: Table, width: int) -> str:
    output = io.StringIO()
    print_table(table, Console(file=output, width=width, soft_wrap=True))
    return output.getvalue()


def test_the_first_metric_is_shown_beside_wide_keys() -> None:
    """The keys are folded, and the number of seeds does not take the metric's place."""
    keys = ["algorithm", "partition.beta", "partition", "data.validation", "clients.per_round"]
    row = ["fedavg", "0.1", "dirichlet", "0.1", "10", "3", "0.9000 ± 0.0100"]
    said = printed(Table("Results", [*keys, "n", "global/accuracy"], [row], keys=5), 80)
    assert "0.9000 ± 0.0100" in said
    assert "Too wide" not in said
    assert max(map(len, said.splitlines())) <= 80


def test_optional_columns_are_left_out_first() -> None:
    """The mark moves with its column."""
    columns, rows = ["method", "paper", "gain", "verdict"], [["m", "0.7000", "+0.1000", "bad"]]
    table = Table("T", columns, rows, {(0, 3): "alarm"}, optional=("gain",))
    output = io.StringIO()
    print_table(table, Console(file=output, width=27, force_terminal=True))
    said = output.getvalue()
    assert "0.7000" in said
    assert "+0.1000" not in said
    assert said.splitlines()[-1] == "gain"  # the last of those left out
    assert "\x1b[1;31mbad" in said


class Page(HTMLParser):
    """Counts tags, and collects what a page would load from elsewhere."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.sources: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.sources += [value or "" for name, value in attrs if name in ("src", "href")]


def test_every_format(tmp_path: Path) -> None:
    methods = {
        name: [accuracies(0.1, value + 0.01 * seed) for seed in range(3)]
        for name, value in {"fedavg": 0.5, "fed<nh>": 0.6}.items()
    }
    write_methods(tmp_path / "runs", methods)
    (tmp_path / "runs" / "broken").mkdir()
    (tmp_path / "runs" / "broken" / "summary.json").write_text("{}")
    made = Report.read(tmp_path / "runs", baseline="algorithm=fedavg")
    folder = tmp_path / "report"
    files = write(made, folder, FORMATS)
    assert {path.name for path in files} == {
        *("report.md", "report.tex", "report.html"),
        *("values.csv", "results.csv", "differences.csv", "curves.csv"),
    }
    text = (folder / "report.html").read_text()
    page = Page(text)
    assert page.sources  # the pictures
    assert all(source.startswith("data:image/png;base64,") for source in page.sources)
    assert page.tags.count("script") == 1
    assert page.tags.count("details") == 2 * 6  # a run, and within it its config
    assert "fed&lt;nh&gt;" in text
    assert "fed<nh>" not in text
    assert re.search(r'<td class="best" data-number="0.6100">\s*0\.6100 ± 0\.0100</td>', text)
    assert "broken: not begun, or no run of fedexp" in text

    said = (folder / "report.md").read_text()
    pictures = re.findall(r"\((figures/\S+\.png)\)", said)
    assert "figures/curves_global_accuracy.png" in pictures
    for picture in pictures:
        assert (folder / picture).read_bytes().startswith(b"\x89PNG")
        assert (folder / picture).with_suffix(".pdf").read_bytes().startswith(b"%PDF")

    curves = pd.read_csv(folder / "curves.csv")
    assert curves.columns.tolist() == ["algorithm", "seed", "round", "global/accuracy"]
    assert curves["round"].tolist() == [1, 2] * 6


def test_one_format_alone(tmp_path: Path) -> None:
    write_run(tmp_path / "run")
    write(Report.read(tmp_path / "run"), tmp_path / "report", ["csv"])
    assert {path.name for path in (tmp_path / "report").iterdir()} == {
        *("values.csv", "results.csv", "curves.csv")
    }


def test_a_runs_warnings_are_in_every_format(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = write_run(tmp_path / "run")
    path = folder / "summary.json"
    summary = json.loads(path.read_text()) | {"warnings": ["this run learned nothing"]}
    path.write_text(json.dumps(summary))
    main([str(folder), "--to", str(tmp_path / "report"), "--format", "md,tex,html"])
    said = [capsys.readouterr().out]
    said += [(tmp_path / "report" / f"report.{kind}").read_text() for kind in ("md", "tex", "html")]
    assert all("run: this run learned nothing." in text for text in said)
