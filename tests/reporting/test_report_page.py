"""The report's page: the keys by which its tables are sorted."""

import json
import shutil
import subprocess
from pathlib import Path

import pytest
from support.run_files import accuracies, write_run

from fedexp.errors import InputError
from fedexp.reporting.files import write
from fedexp.reporting.html import html, leading_number
from fedexp.reporting.report import Report


@pytest.mark.parametrize(
    ("cell", "number"),
    [
        ("0.9120 ± 0.0040", "0.9120"),
        ("+0.0959 ± 0.0071", "+0.0959"),
        ("-56.7", "-56.7"),
        ("1.5e+03 MB", "1.5e+03"),
        ("12 s", "12"),
        (".5", ".5"),
        (">= 200 (1 of 3)", "200"),
        ("2 of 3", None),
        ("", None),
        ("diverged", None),
        ("3rd", None),
        ("[0.1,1]", None),
    ],
)
def test_cells_are_sorted_by_their_first_number(cell: str, number: str | None) -> None:
    assert leading_number(cell) == number


def page(folder: Path) -> str:
    for n, value in enumerate((0.9, 0.8, 0.5, 0.7)):
        overrides = [f"algorithm=a{n}", f"measure.global.targets=[{0.6}]"]
        write_run(folder / str(n), overrides, accuracies(0.1, value))
    return html(Report.read(folder), [])


def test_cells_carry_their_number(tmp_path: Path) -> None:
    text = page(tmp_path)
    assert 'data-number="0.9000">0.9000</td>' in text
    assert '<td class="key ">a0</td>' in text
    # The target that one did not reach.
    assert 'data-number="2">&gt;= 2 (1 of 1)</td>' in text


def test_numbers_come_first_and_empty_cells_last_in_both_directions(tmp_path: Path) -> None:
    node = shutil.which("node")
    if node is None:
        pytest.skip("needs node")
    script = page(tmp_path).partition("<script>")[2].partition("const keyOf")[0]
    cells = ["0.9 ± 0.1", "", "10", "diverged", "-1", "2 of 3", "9"]
    keys = [
        {
            "text": cell,
            "number": float(leading_number(cell) or "nan"),
            "kind": 2 if not cell else int(leading_number(cell) is None),
        }
        for cell in cells
    ]
    rows = json.dumps(keys).replace("NaN", "null")
    code = f"{script} const rows = {rows}; const sorted = (sign) => "
    code += "rows.toSorted((a, b) => order(a, b, sign)).map((row) => row.text);"
    code += "console.log(JSON.stringify([sorted(1), sorted(-1)]))"
    done = subprocess.run([node, "-e", code], capture_output=True, text=True, check=True)
    up, down = json.loads(done.stdout)
    assert up == ["-1", "0.9 ± 0.1", "9", "10", "2 of 3", "diverged", ""]
    assert down == ["10", "9", "0.9 ± 0.1", "-1", "diverged", "2 of 3", ""]


@pytest.mark.parametrize("blocked", ["figures", "report.md"])
def test_a_report_that_cannot_be_written_is_one_line(blocked: str, tmp_path: Path) -> None:
    write_run(tmp_path / "run", history=accuracies(0.1, 0.5))
    folder = tmp_path / "to"
    folder.mkdir()
    if blocked == "figures":
        (folder / blocked).touch()
    else:
        (folder / blocked).mkdir()
    with pytest.raises(InputError, match=r"^--to .*to: cannot be written"):
        write(Report.read(tmp_path / "run"), folder)
