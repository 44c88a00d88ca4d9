"""Columns of numbers that name the row: row numbers, identifiers, dates and times."""

import numpy as np
import pandas as pd
import pytest
from sklearn import datasets

from fedexp.data.readers.row_numbers import warn_of_row_numbers

SETS = ("iris", "wine", "breast_cancer", "diabetes", "digits")


def lines(caplog: pytest.LogCaptureFixture, table: pd.DataFrame) -> list[str]:
    caplog.clear()
    warn_of_row_numbers(table, list(table.columns))
    return [record.getMessage() for record in caplog.records]


@pytest.mark.parametrize("name", SETS)
def test_measured_numbers_are_not_warned_of(name: str, caplog: pytest.LogCaptureFixture) -> None:
    table = getattr(datasets, f"load_{name}")(as_frame=True).data
    assert not lines(caplog, table)
    assert not lines(caplog, table[:60])


def test_raw_ages_and_pressures_are_not_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    assert not lines(caplog, datasets.load_diabetes(as_frame=True, scaled=False).data)


ROWS = 150
DAYS = pd.date_range("2021-03-01", periods=ROWS).strftime("%Y%m%d").astype(int).to_numpy()
SHUFFLED = np.random.default_rng(0).permutation(ROWS)


@pytest.mark.parametrize(
    "numbers",
    [
        pytest.param(np.arange(ROWS), id="index"),
        pytest.param(np.arange(ROWS)[::-1], id="falling"),
        pytest.param(SHUFFLED, id="shuffled index"),
        pytest.param(np.r_[0, 0:149], id="index with a copied row"),
        pytest.param(np.arange(ROWS) * 0.25, id="seconds"),
        pytest.param(1_600_000_000 + 977 * SHUFFLED, id="Unix time"),
        pytest.param(DAYS, id="dates"),
        pytest.param(DAYS[SHUFFLED // 5], id="several rows a day"),
    ],
)
def test_a_column_that_names_the_row_is_warned_of(
    numbers: np.ndarray, caplog: pytest.LogCaptureFixture
) -> None:
    table = datasets.load_iris(as_frame=True).data.assign(id=numbers)
    (line,) = lines(caplog, table)
    values = len(np.unique(numbers))
    assert line == (
        f"data.path: the column id has {values} different values in 150 training rows and looks "
        "like a row number, an identifier or a date, from which a model learns nothing for new "
        "rows; leave it out by data.drop=[id], unless it is a measurement"
    )


def test_gaps_do_not_hide_an_index(caplog: pytest.LogCaptureFixture) -> None:
    numbers = pd.Series(np.arange(100.0)).where(np.arange(100) != 7)
    (line,) = lines(caplog, pd.DataFrame({"row": numbers}))
    assert "99 different values in 100 training rows" in line


def test_a_few_rows_tell_nothing(caplog: pytest.LogCaptureFixture) -> None:
    assert not lines(caplog, pd.DataFrame({"a": np.arange(49)}))
    assert not lines(caplog, pd.DataFrame({"constant": [20210301] * 60, "flag": [0, 1] * 30}))
