"""Odd CSV and Parquet files: each trains on a plain reading of it, or is refused in one line."""

import csv
import datetime
import decimal
import gzip
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from support.odd_data import Outcomes, train_one_round

HEADER = "a,b,kind,label"
ROWS = [f"{1.5 * i:g},{10 - i},{'xyz'[i % 3]},{('no', 'yes')[i % 2]}" for i in range(8)]
PLAIN = "\n".join([HEADER, *ROWS]) + "\n"


def with_cell(value: str, column: int = 0, row: int = 3) -> str:
    """The plain table with another cell."""
    rows = [each.split(",") for each in ROWS]
    rows[row][column] = value
    return "\n".join([HEADER, *map(",".join, rows)]) + "\n"


def with_column(*values: object, name: str = "c") -> str:
    """The plain table with a first column of these values in turn."""
    rows = [f"{values[i % len(values)]},{row}" for i, row in enumerate(ROWS)]
    return "\n".join([f"{name},{HEADER}", *rows]) + "\n"


def with_target(*values: object) -> str:
    rows = [f"{i},{values[i % len(values)]}" for i in range(8)]
    return "\n".join(["a,label", *rows]) + "\n"


@dataclass
class Odd:
    """A file and its outcome.

    Attributes:
        content: text in UTF-8, bytes, or a function that writes the file.
        refused: regular expression of the error line; None if it trains.
        suffix: the file's.
        keys: keys of ``data``.
        like: text of a table with the same reading; None: the file's own.
    """

    content: str | bytes | Callable[[Path], object]
    refused: str | None = None
    suffix: str = ".csv"
    keys: dict[str, Any] = field(default_factory=dict)
    like: str | None = None


def parquet(**columns: Any) -> Callable[[Path], object]:
    """A Parquet file of the plain table with these columns in front, or in place of its own."""
    own = {
        "a": [1.5 * i for i in range(8)],
        "b": [10 - i for i in range(8)],
        "kind": ["xyz"[i % 3] for i in range(8)],
        "label": ["no", "yes"] * 4,
    }
    table = pd.DataFrame(columns | own | columns)
    return lambda path: table.to_parquet(path)


MEAN = {"missing": "mean"}
AS_CATEGORY = {"categorical": ["a"]}

TRAINED = {
    "plain": Odd(PLAIN),
    "a byte order mark": Odd("\ufeff" + PLAIN, like=PLAIN),
    "carriage returns and line feeds": Odd(PLAIN.replace("\n", "\r\n"), like=PLAIN),
    "carriage returns only": Odd(PLAIN.replace("\n", "\r"), like=PLAIN),
    "no last line feed": Odd(PLAIN.rstrip()),
    "blank lines": Odd(PLAIN.replace("\n", "\n\n"), like=PLAIN),
    "all cells quoted": Odd('"' + PLAIN.strip().replace(",", '","').replace("\n", '"\n"') + '"\n'),
    "a comma in quotes": Odd(with_cell('"x, or y"', column=2)),
    "a line feed in quotes": Odd(with_cell('"x\ny"', column=2)),
    "doubled quotes": Odd(with_cell('"an ""x"""', column=2)),
    "a tab in a category": Odd(with_cell("x\ty", column=2)),
    "an apostrophe": Odd(with_cell("it's", column=2)),
    "unicode categories": Odd(with_column("größe", "大", "ما", "🙂")),
    "unicode names": Odd(with_column(1, 2, 3, name="größe 🙂")),
    "names with spaces": Odd(with_column(1, 2, 3, name=" two words ")),
    "names that are numbers": Odd(with_column(1, 2, 3, name="7")),
    "a name that pandas uses": Odd(with_column(1, 2, 3, name="index")),
    "spaces around numbers": Odd(with_cell(" 2.5 ")),
    "powers of ten": Odd(with_cell("2.5E+02")),
    "plus signs": Odd(with_cell("+2.5")),
    "leading zeros": Odd(with_column("007", "010", "100")),
    "numbers of 30 digits": Odd(with_column("9" * 30, "1" * 30, "5")),
    "numbers beyond 53 bits": Odd(with_column(2**60, 2**60 + 4096, 5)),
    "very large numbers": Odd(with_column("1e100", "-1e100", "3e99")),
    "small differences of large numbers": Odd(with_column(1e9 + 1, 1e9 + 2, 1e9 + 3)),
    "a constant that is no sum of halves": Odd(with_column(0.1)),
    "a constant category": Odd(with_column("same")),
    "a constant zero": Odd(with_column(0)),
    "two rows": Odd("\n".join([HEADER, *ROWS[:2]])),
    "one column": Odd(with_target("no", "yes")),
    "only categories": Odd("kind,label\n" + "x,no\ny,yes\nz,no\n" * 3),
    "hundreds of columns": Odd(
        ",".join(f"c{i}" for i in range(300))
        + ",label\n"
        + ("1," * 300 + "no\n" + "2," * 300 + "yes\n") * 3
    ),
    "targets are numbers": Odd(with_target(3, 10, -2)),
    "targets are whole floats": Odd(with_target("1.0", "2.0")),
    "targets are booleans": Odd(with_target("True", "False")),
    "targets have commas": Odd(with_target('"no, never"', "yes")),
    "targets differ in case": Odd(with_target("yes", "Yes", "YES")),
    "targets are large numbers": Odd(with_target(2**60, 2**60 + 1)),
    "a column of booleans": Odd(with_column("True", "False", "False")),
    "a column of dates": Odd(with_column("2020-01-05", "2021-12-31")),
    "a column of percentages": Odd(with_column("12%", "15%", "9%")),
    "tab separated": Odd(PLAIN.replace(",", "\t"), suffix=".tsv", like=PLAIN),
    "a suffix in capitals": Odd(PLAIN, suffix=".CSV"),
    "numbers that are categories": Odd(PLAIN, keys=AS_CATEGORY),
    "codes that are categories": Odd(with_cell("?"), keys=AS_CATEGORY),
    "an empty number, filled": Odd(with_cell(""), keys=MEAN),
    "a number that is called null, filled": Odd(with_cell("NULL"), keys=MEAN, like=with_cell("")),
    "an empty category, filled": Odd(with_cell("", column=2), keys=MEAN),
    "an empty field at the end of rows": Odd(
        "\n".join([HEADER, *(f"{row}," for row in ROWS)]) + "\n", like=PLAIN
    ),
    "parquet": Odd(parquet(), suffix=".parquet", like=PLAIN),
    "parquet with decimals": Odd(
        parquet(a=[decimal.Decimal(15 * i) / 10 for i in range(8)]), suffix=".parquet", like=PLAIN
    ),
    "parquet with categories": Odd(
        parquet(kind=pd.Categorical(["xyz"[i % 3] for i in range(8)])),
        suffix=".parquet",
        like=PLAIN,
    ),
    "parquet with text of numbers": Odd(
        parquet(c=["007", "010"] * 4),
        suffix=".parquet",
        keys={"categorical": ["c"]},
        like=with_column("007", "010"),
    ),
    "parquet with dates": Odd(
        parquet(c=[datetime.date(2020, 1, 1 + i % 2) for i in range(8)]),
        suffix=".parquet",
        like=with_column("2020-01-01", "2020-01-02"),
    ),
}

REFUSED = {
    "empty": Odd("", "cannot be read"),
    "only line feeds": Odd("\n\n\n", "cannot be read"),
    "only names": Odd(HEADER + "\n", "holds no rows"),
    "one row": Odd("\n".join([HEADER, ROWS[0]]), "label: .* has rows of one class only, no"),
    "one class": Odd(with_target("no"), "label: .* has rows of one class only, no"),
    "a long row": Odd(PLAIN + "1,2,x,no,7\n", "Expected 4 fields in line 10, saw 5"),
    "long rows": Odd(
        PLAIN.replace("no\n", "no,7\n").replace("yes\n", "yes,7\n"), "more values than"
    ),
    "a short row": Odd(PLAIN + "1,2\n", r"label: .* has no value in 1 of 9 rows, first in row 8 "),
    "a short row before others": Odd(
        "label,a,b\nno,1,2\nyes,1\nno,2,3\n", r"no value of b \(1, first in row 1\)"
    ),
    "two equal names": Odd(with_column(1, name="a"), "two columns are named a"),
    "two targets": Odd(with_column(1, name="label"), "two columns are named label"),
    "a column without a name": Odd(with_column(1, 2, name=""), "a column has no name"),
    "a question mark": Odd(with_cell("?"), r"column a holds numbers, but '\?' in row 3 "),
    "a decimal comma": Odd(with_cell('"12,5"'), "column a holds numbers, but '12,5' in row 3 "),
    "decimal commas": Odd(
        with_column('"1,5"', '"2,5"'), "column c holds numbers, but '1,5' in row 0 "
    ),
    "a thousands separator": Odd(
        with_cell("1 000"), "column a holds numbers, but '1 000' in row 3"
    ),
    "a unit": Odd(with_cell("3 kg"), "column a holds numbers, but '3 kg' in row 3 "),
    "a minus of typesetters": Odd(
        with_cell("\u22123"), "column a holds numbers, but '\u22123' in row 3 "
    ),
    "digits of another script": Odd(with_cell("٣"), "column a holds numbers, but '٣' in row 3 "),
    "a hexadecimal number": Odd(with_cell("0x10"), "column a holds numbers, but '0x10' in row 3 "),
    "a boolean among numbers": Odd(
        with_cell("True"), "column a holds numbers, but 'True' in row 3 "
    ),
    "a comment": Odd(PLAIN + "#,1,x,no\n", "column a holds numbers, but '#' in row 8 "),
    "a code among targets": Odd(
        with_target(1, 2, 3, "4B"), "column label holds numbers, but '4B' "
    ),
    "infinity": Odd(with_cell("inf"), "column a holds an infinite number in row 3 "),
    "minus infinity": Odd(with_cell("-Infinity"), "column a holds an infinite number in row 3 "),
    "a number beyond floats": Odd(
        with_cell("1e400"), "column a holds an infinite number in row 3 "
    ),
    "numbers whose squares overflow": Odd(
        with_cell("1e200"), "column a: numbers up to 1e.200 are too"
    ),
    "an empty number": Odd(with_cell(""), r"no value of a \(1, first in row 3\)"),
    "not a number": Odd(with_cell("NaN"), r"no value of a \(1, first in row 3\)"),
    "an empty category": Odd(with_cell("", column=2), r"no value of kind \(1, first in row 3\)"),
    "an empty target": Odd(
        with_cell("", column=3), r"label: .* no value in 1 of 8 rows, first in row 3"
    ),
    "an empty column": Odd(
        with_column(""), "column c has no value in the training rows", keys=MEAN
    ),
    "an open quote": Odd(PLAIN + '1,2,"x,no\n', "EOF inside string"),
    "UTF-16": Odd(PLAIN.encode("utf-16"), "codec can't decode"),
    "Latin-1": Odd(with_column("größe").encode("latin-1"), "codec can't decode"),
    "packed": Odd(gzip.compress(PLAIN.encode()), "codec can't decode"),
    "an image": Odd(b"\x89PNG\r\n\x1a\n" + bytes(range(256)), "codec can't decode"),
    "semicolons": Odd(PLAIN.replace(",", ";"), "target=label: .* has no such column"),
    "only targets": Odd("label\n" + "no\nyes\n" * 4, "holds no column beside"),
    "names of people": Odd(
        "name,label\n" + "".join(f"n{i},{i % 2}\n" for i in range(1500)),
        "column name has 1500 diff",
    ),
    "targets are fractions": Odd(with_target(0.5, 1.5), "holds numbers such as 0.5 in row 0 "),
    "targets are infinite": Odd(with_target(0, 1, "inf"), "column label holds an infinite number"),
    "targets are too large": Odd(with_target(0, "1e17"), r"holds numbers such as 1e.17 in row 1 "),
    "a folder": Odd(lambda path: path.mkdir(), "cannot be read"),
    "absent": Odd(lambda path: None, r"cannot be read \(No such file"),
    "another suffix": Odd(PLAIN, r"should be a \.csv", suffix=".xls"),
    "parquet cut short": Odd(
        lambda path: path.write_bytes(parquet_bytes(path)[:200]),
        "cannot be read",
        suffix=".parquet",
    ),
    "parquet with a null": Odd(
        parquet(c=pd.array([1, None] * 4, dtype="Int64")), r"no value of c \(4, ", suffix=".parquet"
    ),
    "parquet with text among numbers": Odd(
        parquet(c=["1", "2", "?", "4"] * 2),
        r"column c holds numbers, but '\?' in",
        suffix=".parquet",
    ),
    "parquet with a number too large": Odd(
        parquet(c=[1e308, -1e308] * 4), "column c: numbers up to 1e.308", suffix=".parquet"
    ),
}


def parquet_bytes(path: Path) -> bytes:
    parquet()(path)
    return path.read_bytes()


def read_plainly(path: Path, categorical: list[str]) -> tuple[np.ndarray, list[str], list[str]]:
    """Inputs, classes and targets by Python's csv module and loops."""
    with path.open(newline="", encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if any(row.values())]
    numeric, one_hot = [], []
    for name in rows[0]:
        if name in ("label", None):
            continue
        cells = [row[name] for row in rows]
        numbers = None if name in categorical else as_numbers(cells)
        if numbers is None:
            known = sorted(set(cells) - {""})
            one_hot += [[float(cell == each) for cell in cells] for each in known]
        else:
            there = [x for x in numbers if not np.isnan(x)]
            spread = np.std(there) if min(there) < max(there) else np.inf
            scaled = [(x - np.mean(there)) / spread for x in numbers]
            numeric.append([0.0 if np.isnan(x) else x for x in scaled])
    targets = [row["label"].removesuffix(".0") for row in rows]
    return np.array(numeric + one_hot).T, sorted(set(targets), key=in_order), targets


def in_order(target: str) -> tuple[int, str]:
    return (int(target), "") if is_number(target) else (0, target)


def as_numbers(cells: list[str]) -> list[float] | None:
    """The cells as floats, an empty one as NaN; None if one is no number."""
    if set(cells) <= {"True", "False"}:
        return [float(cell == "True") for cell in cells]
    if not all(is_number(cell) for cell in cells if cell):
        return None
    return [float(cell) if cell else np.nan for cell in cells]


def is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True


@pytest.mark.matrix
@pytest.mark.parametrize("name", [*TRAINED, *REFUSED])
def test_an_odd_table_trains_or_is_refused(name: str, tmp_path: Path, outcomes: Outcomes) -> None:
    odd = (TRAINED | REFUSED)[name]
    path = tmp_path / f"odd{odd.suffix}"
    if callable(odd.content):
        odd.content(path)
    else:
        path.write_bytes(odd.content if isinstance(odd.content, bytes) else odd.content.encode())
    keys = {"path": str(path), "test_path": str(path)} | odd.keys
    options = ("data=tabular", "data.path=?", "data.target=label")
    data = outcomes.of(lambda: train_one_round(*options, cache=tmp_path, **keys), odd.refused)
    if data is None:
        return
    if odd.like is not None:
        (tmp_path / "like.csv").write_text(odd.like)
        path = tmp_path / "like.csv"
    inputs, classes, targets = read_plainly(path, odd.keys.get("categorical", []))
    for split in (data.train, data.test):
        np.testing.assert_allclose(split.inputs.numpy(), inputs, atol=1e-5, rtol=1e-5)
        assert [data.description.classes[label] for label in split.labels] == targets
    assert list(data.description.classes) == classes
