"""With ``--own-data`` each node reads a table of its own, whose inputs must be the server's."""

from pathlib import Path

import pandas as pd
import pytest
from support.fake_grid import FakeGrid, bundle, run

from fedexp.errors import InputError

TABLE = pd.DataFrame(
    {
        "age": [30, 41, 52, 63, 74, 35, 46, 57],
        "bmi": [21.5, 30.0, 24.5, 28.0, 22.5, 31.0, 23.0, 27.5],
        "ward": ["a", "b", "a", "b", "b", "a", "b", "a"],
        "ill": ["no", "yes"] * 4,
    }
)


def grid_of_tables(folder: Path, odd: pd.DataFrame) -> FakeGrid:
    """Four nodes with a file each; the last one's holds ``odd``."""
    paths = [folder / f"clinic_{client}.csv" for client in range(4)]
    for path, table in zip(paths, [TABLE, TABLE, TABLE, odd], strict=True):
        table.to_csv(path, index=False)
    TABLE.to_csv(folder / "ours.csv", index=False)
    words = ["data=tabular", f"data.path={folder / 'ours.csv'}", "data.target=ill"]
    module = bundle(folder, "--own-data", "algorithm=fedavg", "data.subset=null", *words)
    grid = FakeGrid(module, folder / "states", key="client")
    grid.own = {client: {"data-path": str(path)} for client, path in enumerate(paths)}
    return grid


def test_files_of_other_names_take_part(tmp_path: Path) -> None:
    assert run(grid_of_tables(tmp_path, TABLE), tmp_path / "runs").summary["rounds"] == 3


@pytest.mark.parametrize(
    "odd",
    [TABLE[["bmi", "age", "ward", "ill"]], TABLE.replace({"ward": {"b": "c"}})],
    ids=["columns", "categories"],
)
def test_a_table_with_other_inputs_takes_no_part(
    odd: pd.DataFrame, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(InputError):
        run(grid_of_tables(tmp_path, odd), tmp_path / "runs")
    assert "client 3 has a dataset of other classes, inputs or shapes" in caplog.text
