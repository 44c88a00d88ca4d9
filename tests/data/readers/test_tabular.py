import logging
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from support.federations import assert_alike, federate
from support.refusals import refused
from support.tables import TABULAR, WARDS, breast_cancer, tabular_options, wine, write_table

from fedexp.data.dataset import Dataset
from fedexp.data.readers.tabular import Tabular
from fedexp.errors import InputError


def read(path: Path, **changes: Any) -> Dataset:
    source = Tabular(path=path, **(TABULAR | changes))
    dataset = source.load(path.parent)
    assert dataset.description == source.describe()
    return dataset


def written(folder: Path, table: pd.DataFrame, name: str = "table.csv") -> Path:
    table.to_csv(folder / name, index=False)
    return folder / name


SMALL = pd.DataFrame(
    {"a": [1.0, 3.0, 5.0, 7.0], "kind": ["x", "y", "x", "z"], "label": ["no", "yes", "no", "yes"]}
)


def test_numbers_are_standardised_and_categories_become_columns(tmp_path: Path) -> None:
    path = written(tmp_path, SMALL)
    tests = pd.DataFrame({"label": ["yes", "no"], "kind": ["y", "new"], "a": [4.0, 8.0]})
    dataset = read(path, target="label", test_path=written(tmp_path, tests, "test.csv"))
    # mean 4, standard deviation sqrt((9 + 1 + 1 + 9) / 4) = sqrt(5); kinds x, y, z
    numbers = torch.tensor([-3.0, -1.0, 1.0, 3.0]) / 5**0.5
    kinds = torch.tensor([[1.0, 0, 0], [0, 1, 0], [1, 0, 0], [0, 0, 1]])
    torch.testing.assert_close(dataset.train.inputs, torch.cat([numbers[:, None], kinds], 1))
    expected = torch.tensor([[0, 0, 1.0, 0], [4 / 5**0.5, 0, 0, 0]])  # "new" is no known kind
    torch.testing.assert_close(dataset.test.inputs, expected)
    assert dataset.description.classes == ("no", "yes")
    assert dataset.description.columns == ("a", "kind=x", "kind=y", "kind=z")
    assert (dataset.train.labels.tolist(), dataset.test.labels.tolist()) == ([0, 1, 0, 1], [1, 0])
    assert dataset.train.users is None


def test_an_unseen_category_is_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    tests = written(tmp_path, SMALL.assign(kind="new"), "test.csv")
    with caplog.at_level(logging.WARNING):
        read(written(tmp_path, SMALL), target="label", test_path=tests)
    assert "4 rows have a value of kind that no training row has" in caplog.text


def test_a_column_of_almost_as_many_categories_as_rows_is_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Such as prices with a sign: each becomes an input of its own."""
    label = ["no", "yes"] * 20
    prices = pd.DataFrame({"price": [f"${n}.5" for n in range(40)], "label": label})
    few = pd.DataFrame({"size": [f"{n} m" for n in range(20)] * 2, "label": label})
    read(written(tmp_path, few), target="label", test_fraction=0.2)
    assert not caplog.text
    read(written(tmp_path, prices), target="label", test_fraction=0.2)
    assert "the column price has 32 different values in 32 training rows" in caplog.text


def test_a_number_and_a_date_of_each_row_are_said_unless_left_out(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    table = breast_cancer().drop(columns=["ward", "stage"])
    table["id"] = 1000 + np.arange(len(table))
    table["date"] = pd.date_range("2021-01-01", periods=len(table)).strftime("%Y%m%d")
    path = written(tmp_path, table)
    read(path, drop=["id", "date"])
    assert not caplog.text
    read(path)
    for name in ("id", "date"):
        assert caplog.text.count(f"leave it out by data.drop=[{name}]") == 1
    assert len(caplog.records) == 2


def test_statistics_are_those_of_the_training_rows(tmp_path: Path) -> None:
    dataset = read(write_table(tmp_path))
    train, test = dataset.train.inputs[:, :6], dataset.test.inputs[:, :6]
    torch.testing.assert_close(train.mean(0), torch.zeros(6), atol=1e-5, rtol=0)
    torch.testing.assert_close(train.std(0, correction=0), torch.ones(6), atol=1e-5, rtol=0)
    assert test.mean(0).abs().max() > 1e-3
    assert dataset.description.input_shape == (6 + 3 + 3,)  # stages and wards


def test_every_row_is_in_one_part_and_classes_keep_their_shares(tmp_path: Path) -> None:
    table = breast_cancer()
    table["row"] = np.arange(len(table))
    dataset = read(written(tmp_path, table), drop=["ward", "stage"])
    spread = np.sort(torch.cat([dataset.train.inputs[:, -1], dataset.test.inputs[:, -1]]).numpy())
    assert len(np.unique(spread)) == len(table)
    assert len(dataset.test) == 114
    for split in (dataset.train, dataset.test):
        assert split.labels.float().mean() == pytest.approx(212 / 569, abs=0.005)
    other = read(written(tmp_path, table), drop=["ward", "stage"], split_seed=1)
    assert not torch.equal(other.test.inputs, dataset.test.inputs)
    again = read(written(tmp_path, table), drop=["ward", "stage"])
    assert torch.equal(again.test.inputs, dataset.test.inputs)


def test_a_constant_column_is_zero(tmp_path: Path) -> None:
    dataset = read(written(tmp_path, SMALL.assign(a=7)), target="label", test_fraction=0.5)
    assert dataset.train.inputs[:, 0].tolist() == [0, 0]


@pytest.mark.parametrize("values", [[1, 0, 1, 2], [10.0, 9.0, 10.0, 11.0], [2, 1, 2, 10]])
def test_numbered_classes_are_in_the_order_of_the_numbers(tmp_path: Path, values: Any) -> None:
    path = written(tmp_path, SMALL.assign(label=values))
    dataset = read(path, target="label", test_path=path)
    assert dataset.description.classes == tuple(str(int(v)) for v in sorted(set(values)))
    assert dataset.train.labels.tolist() == [1, 0, 1, 2]


def test_booleans_and_numbers_that_stand_for_categories(tmp_path: Path) -> None:
    path = written(tmp_path, SMALL.assign(label=[True, False, True, False], zip=[7, 7, 8, 9]))
    dataset = read(path, target="label", test_path=path, categorical=["zip"], drop=["a", "kind"])
    assert dataset.description.classes == ("False", "True")
    assert dataset.train.inputs.tolist() == [[1, 0, 0], [1, 0, 0], [0, 1, 0], [0, 0, 1]]


def test_missing_values_are_refused_or_get_the_training_mean(tmp_path: Path) -> None:
    gaps = SMALL.assign(a=[1.0, np.nan, 3.0, 5.0], kind=["x", None, "x", "y"])
    path = written(tmp_path, gaps)
    with pytest.raises(
        InputError,
        match=r"^data\.missing=refuse: rows .* a \(1, .*, kind \(1, .*; data\.missing=mean ",
    ):
        read(path, target="label", test_path=path)
    dataset = read(path, target="label", test_path=path, missing="mean")
    assert dataset.train.inputs[1].tolist() == [0, 0, 0]  # the mean, and neither x nor y
    spread = ((2**2 + 0 + 2**2) / 3) ** 0.5  # of 1, 3 and 5
    assert dataset.train.inputs[0, 0].item() == pytest.approx(-2 / spread)


def test_parquet_holds_the_same(tmp_path: Path) -> None:
    breast_cancer().to_parquet(tmp_path / "cancer.parquet")
    one, other = read(write_table(tmp_path)), read(tmp_path / "cancer.parquet")
    assert torch.equal(one.train.inputs, other.train.inputs)
    assert torch.equal(one.test.labels, other.test.labels)


def test_rows_of_parquet_are_counted_whatever_index_it_stores(tmp_path: Path) -> None:
    path = tmp_path / "table.parquet"
    SMALL.set_axis([7, 5, 3, 1]).to_parquet(path)
    dataset = read(path, target="label", test_path=path)
    assert dataset.train.origin is not None
    assert dataset.train.origin.rows.tolist() == [0, 1, 2, 3]
    SMALL.assign(a=[1.0, np.nan, 5.0, 7.0]).set_axis([7, 5, 3, 1]).to_parquet(path)
    with pytest.raises(InputError, match=r"no value of a \(1, first in row 1\)"):
        read(path, target="label", test_path=path)


def test_users_are_within_both_parts_or_in_one(tmp_path: Path) -> None:
    path = write_table(tmp_path)
    within = read(path, user="ward")
    assert within.description.input_shape == (6 + 3,)  # whose a row is is no input
    wards = breast_cancer()["ward"].value_counts()
    for ward in WARDS:
        tested = int((np.asarray(within.test.users) == ward).sum())
        assert tested == wards[ward] // 5
        assert int((np.asarray(within.train.users) == ward).sum()) == wards[ward] - tested
    apart = read(path, user="ward", split="users")
    train, test = set(np.asarray(apart.train.users)), set(np.asarray(apart.test.users))
    assert (train | test, train & test, len(test)) == (set(WARDS), set(), 1)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"target": "diagnosi"}, r"^data\.target=diagnosi: .*no such column \(did you mean diagno"),
        ({"user": "hospital"}, r"^data\.user=hospital: .*cancer\.csv has no such column; it has "),
        ({"drop": ["nope"]}, r"^data\.drop=nope: .* no such column"),
        (
            {"drop": ["diagnosis"]},
            r"^data\.target, .* different columns, but diagnosis is named twice",
        ),
        (
            {"target": "mean radius"},
            r"^data\.target=mean radius: .*csv holds numbers such as 17\.99 in row 0 .*, 456 "
            r"different values in all; this is classification, .*; divide numbers into classes",
        ),
        ({"test_fraction": 0.001}, r"^data\.test_fraction=0\.001: cannot split 569 samples of 2"),
        ({"split": "users"}, r"^data\.split=users: needs data\.user"),
        ({"path": Path("/nowhere/a.csv")}, r"^data\.path=/nowhere/a\.csv: cannot be read \(No su"),
        ({"path": Path("/nowhere/a.xls")}, r"^data\.path=/nowhere/a\.xls: should be a \.csv"),
        ({"test_path": Path("/nowhere/a.csv")}, r"^data\.test_path=/nowhere/a\.csv: cannot be r"),
    ],
)
def test_what_cannot_be_read_is_one_line(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    with refused(message):
        read(changes.pop("path", write_table(tmp_path)), **changes)


@pytest.mark.parametrize(
    ("table", "message"),
    [
        (SMALL.assign(label="no"), r"^data\.target=label: .* has rows of one class only, no"),
        (
            SMALL.assign(label=["a", None, "b", "a"]),
            r"^data\.target=label: .*csv has no value in 1 of 4 rows, first in row 1",
        ),
        (SMALL.assign(a=[np.inf, 1, 2, 3]), r"column a holds an infinite number"),
        (SMALL.assign(a=np.nan), r"column a has no value in the training rows; .*drop=\[a\]"),
        (SMALL[["label"]], "holds no column beside the target"),
        (SMALL.iloc[:0], "holds no rows"),
        (
            pd.DataFrame({"name": [f"n{i}" for i in range(2000)], "label": [0, 1] * 1000}),
            r"column name has 1600 different values, .*; leave it out by data\.drop=\[name\]",
        ),
    ],
)
def test_a_table_that_cannot_be_used_is_one_line(
    tmp_path: Path, table: pd.DataFrame, message: str
) -> None:
    path = written(tmp_path, table)
    rest = {} if len(table) > 100 else {"test_path": path}
    with refused(message):
        read(path, target="label", missing="mean", **rest)


@pytest.mark.parametrize("content", [b"", b'a,"label\n1', b"\xff\xfe\x00a,b\n1,2\n"])
def test_a_damaged_file_is_one_line(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "table.csv").write_bytes(content)
    with refused(r"^data\.path=.*table\.csv: cannot be read"):
        read(tmp_path / "table.csv", target="label")


def test_test_rows_of_another_kind_are_one_line(tmp_path: Path) -> None:
    path = written(tmp_path, SMALL)
    for tests, message in (
        (
            SMALL.assign(a=list("pqrs")),
            r"^data\.test_path: the column a holds .* but numbers in the training rows$",
        ),
        (
            SMALL.assign(a=list("1?23")),
            r"^data\.test_path=.*: the column a holds .* '\?' in row 1 ",
        ),
        (SMALL[["a", "label"]], r"^data\.test_path=.*: has no column kind"),
    ):
        with pytest.raises(InputError, match=message):
            read(path, target="label", test_path=written(tmp_path, tests, "test.csv"))


@pytest.mark.parametrize("cell", ["?", "12,5", "1 000", "n/a.", "True"])
def test_one_cell_does_not_turn_numbers_into_categories(tmp_path: Path, cell: str) -> None:
    table = breast_cancer().astype({"mean area": object})
    table.loc[5, "mean area"] = cell
    path = written(tmp_path, table)
    with pytest.raises(InputError) as caught:
        read(path)
    assert str(caught.value) == (
        f"data.path={path}: the column mean area holds numbers, but {cell!r} in row 5 (counted "
        "from 0); correct it, or use data.categorical=[mean area] if its values are categories"
    )
    known = breast_cancer().drop(index=5)["mean area"].nunique()
    about = Tabular(path=path, **(TABULAR | {"categorical": ["mean area"]})).describe()
    assert known * 0.7 < about.input_shape[0] - 11 <= known + 1


def test_numbers_in_a_foreign_notation_are_one_line(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"the column a holds numbers, but '1,0' in row 0 "):
        read(written(tmp_path, SMALL.assign(a=["1,0", "2,5", "3,1", "4,2"])), target="label")


def test_codes_of_a_target_are_classes_if_the_config_says_so(tmp_path: Path) -> None:
    path = written(tmp_path, SMALL.assign(label=["1", "2", "2", "3B"]))
    with pytest.raises(InputError, match=r"the column label holds numbers, but '3B' in row 3 "):
        read(path, target="label", test_path=path)
    found = read(path, target="label", test_path=path, categorical=["label"])
    assert found.description.classes == ("1", "2", "3B")


def test_a_target_with_a_class_for_every_few_rows_is_questioned(tmp_path: Path) -> None:
    ages = pd.DataFrame({"a": range(100), "age": [20 + row % 20 for row in range(100)]})
    path = written(tmp_path, ages)
    with pytest.raises(
        InputError,
        match=r"^data\.target=age: this is classification, but the target column age of .* has 20 "
        r"different values in 100 rows; use another column, .*data\.many_classes=true$",
    ):
        read(path, target="age")
    assert len(read(path, target="age", many_classes=True).description.classes) == 20
    decades = written(tmp_path, ages.assign(age=ages["age"] // 2), "decades.csv")
    assert len(read(decades, target="age").description.classes) == 10


def test_a_target_of_many_numbers_is_questioned_however_many_rows_there_are(tmp_path: Path) -> None:
    prices = pd.DataFrame({"a": [0.5, 1.5, 1.0] * 505, "price": np.arange(1515) % 101})
    path = written(tmp_path, prices)
    with pytest.raises(
        InputError,
        match=r"^data\.target=price: this is classification, but .* 101 different values in 1,515 ",
    ):
        read(path, target="price")
    for accepted in ({"many_classes": True}, {"categorical": ["price"]}):
        assert len(read(path, target="price", **accepted).description.classes) == 101


def test_a_constant_becomes_zero(tmp_path: Path) -> None:
    """In floats the deviation of a hundred times 0.1 is not 0."""
    table = pd.DataFrame({"a": 0.1, "b": range(100), "label": ["no", "yes"] * 50})
    assert 0 < np.std(table["a"]) < 1e-15
    path = written(tmp_path, table)
    tests = written(tmp_path, table.assign(a=0.6), "test.csv")
    dataset = read(path, target="label", test_path=tests)
    assert (dataset.train.inputs[:, 0] == 0).all()
    torch.testing.assert_close(dataset.test.inputs[:, 0], torch.full((100,), 0.5))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("a,label,label\n1,x,x\n2,y,y\n", "two columns are named label"),
        ("a;label\n1,5;x\n2;y\n", "is separated by ';', not by ','; save it with commas and"),
        (",a,label\n0,1,x\n1,2,y\n", r"a column has no name, .*data\.drop=\['Unnamed: 0'\]"),
        ("a,label\n1,x,7\n2,y,8\n", "rows have more values than the row of names"),
        ("a,label\n1,x\n2,y,8\n", "cannot be read .*Expected 2 fields in line 3, saw 3"),
        # Before pandas 3 such a word is no number at all.
        ("a,label\n1,x\n1e999,y\n", "the column a holds (an infinite number|.*'1e999') in row 1 "),
        ("a,label\n1e308,x\n-1e308,y\n", "column a: numbers up to 1e.308 are too large to st"),
        ("a,label\n1,0\n2,inf\n", "the column label holds an infinite number in row 1 "),
        (
            "a,label\n1,0\n2,1e17\n",
            r"target=label: .* holds numbers such as 1e.17 in row 1 .*2\^53",
        ),
    ],
)
def test_a_file_that_could_be_misread_is_one_line(
    tmp_path: Path, content: str, message: str
) -> None:
    (tmp_path / "table.csv").write_text(content)
    with refused(message):
        read(tmp_path / "table.csv", target="label", test_path=tmp_path / "table.csv")


def test_a_test_row_beyond_32_bits_is_one_line(tmp_path: Path) -> None:
    tests = written(tmp_path, SMALL.assign(a=1e300), "test.csv")
    with pytest.raises(InputError, match="column a holds a number that is too large after"):
        read(written(tmp_path, SMALL), target="label", test_path=tests)


def test_whole_numbers_beyond_53_bits_stay_apart(tmp_path: Path) -> None:
    table = SMALL.assign(label=[2**60, 2**60 + 1, 2**70, 2**70 + 1])
    path = written(tmp_path, table)
    found = read(path, target="label", test_path=path, categorical=["label"])
    assert found.description.classes == tuple(str(each) for each in sorted(table["label"]))
    found = read(written(tmp_path, table[:2]), target="label", test_path=tmp_path / "table.csv")
    assert found.description.classes == (str(2**60), str(2**60 + 1))


SIZES = ["clients.count=3", "clients.per_round=3", "local.epochs=1", "measure.personal.every=1"]
SIZES += ["model.hidden=[16]", "model.feature_dim=8"]


@pytest.mark.parametrize("partition", ["natural", "dirichlet"])
def test_stacked_clients_train_as_one_after_another(tmp_path: Path, partition: str) -> None:
    overrides = [*tabular_options(write_table(tmp_path)), f"partition={partition}", *SIZES]
    assert_alike(federate(*overrides), federate(*overrides, "engine=vectorized"), rounds=2)


def test_it_learns(tmp_path: Path) -> None:
    wine().to_csv(tmp_path / "wine.csv", index=False)
    options = ["data=tabular", f"data.path={tmp_path / 'wine.csv'}", "data.target=target"]
    federation = federate(*options, *SIZES, "optimizer.lr=0.1", "partition=iid")
    for round in range(1, 11):
        metrics = federation.run_round(round).metrics
    assert metrics["global/accuracy"] > 0.9
