import numpy as np
import pandas as pd
import pytest

from fedexp.data.preparations.preparation import from_node
from fedexp.data.preparations.rows import Rows
from fedexp.errors import InputError

ROWS = Rows(("a",), (4.0,), (2.0,), {"kind": ("x", "y"), "zip": ("7", "8")}, "mean")


def test_rows_become_numbers_then_a_column_for_each_category() -> None:
    table = pd.DataFrame({"zip": [8.0, 7.0], "other": [0, 0], "a": [6, 4], "kind": ["x", "y"]})
    raw = ROWS.read(table)
    assert raw.tolist() == [[6, 0, 1], [4, 1, 0]]
    assert ROWS.prepare(raw).tolist() == [[1, 1, 0, 0, 1], [0, 0, 1, 1, 0]]


def test_what_is_missing_is_the_mean_or_no_category(caplog: pytest.LogCaptureFixture) -> None:
    raw = ROWS.read({"a": [None, 2.0], "kind": [None, "new"], "zip": [7, 8]})
    assert "of 2 rows some have no value of a (1, first in row 0), kind (1" in caplog.text
    assert np.isnan(raw[0, 0].item())
    assert raw[:, 1].tolist() == [-1, -1]
    assert ROWS.prepare(raw).tolist() == [[0, 0, 0, 1, 0], [-1, 0, 0, 0, 1]]


def test_missing_values_are_refused_as_in_training() -> None:
    strict = Rows(("a",), (4.0,), (2.0,), {}, "refuse")
    with pytest.raises(InputError, match=r"^data\.missing=refuse: rows have no value of a \(1"):
        strict.read({"a": [1.0, None]})
    raw = strict.read({"a": [1.0]}) * float("nan")
    assert strict.prepare(raw).isnan().all()  # where no one asks, it is not hidden


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        ({"a": [1], "zip": [7]}, "the table has no column kind; it takes a, kind, zip"),
        ({"a": ["one"], "kind": ["x"], "zip": [7]}, "the column a holds other values than numbers"),
        (3, "takes a table with a, kind, zip"),
    ],
)
def test_another_table_is_refused(raw: object, message: str) -> None:
    with pytest.raises(InputError, match=message):
        ROWS.read(raw)


def test_a_node_makes_an_equal_one() -> None:
    assert from_node(ROWS.node) == ROWS
