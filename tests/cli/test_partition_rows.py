"""The partition as a table in the terminal."""

from io import StringIO
from pathlib import Path

from rich.console import Console

from fedexp.cli.partition_rows import print_partition


def printed(path: Path, width: int) -> list[list[str]]:
    file = StringIO()
    print_partition(path, Console(file=file, width=width))
    return [line.split() for line in file.getvalue().splitlines() if line.strip()]


def test_counts_sums_and_classes(tmp_path: Path) -> None:
    path = tmp_path / "partition.csv"
    path.write_text("client,cat,dog\n0,3,0\n1,2,6\n2,0,0\n")
    header, _, *rows = printed(path, 80)
    assert header == ["client", "samples", "cat", "dog", "classes"]
    assert rows == [["0", "3", "3", "0", "1"], ["1", "8", "2", "6", "2"], ["2", "0", "0", "0", "0"]]


def test_natural_clients_have_names(tmp_path: Path) -> None:
    path = tmp_path / "partition.csv"
    path.write_text("client,client_name,cat,dog\n0,ann,3,0\n1,a\x1bb,2,6\n")
    header, _, *rows = printed(path, 80)
    assert header == ["client", "name", "samples", "cat", "dog", "classes"]
    assert rows == [["0", "ann", "3", "3", "0", "1"], ["1", r"a\x1bb", "8", "2", "6", "2"]]


def test_the_largest_class_stands_for_many_and_rows_are_limited(tmp_path: Path) -> None:
    path = tmp_path / "partition.csv"
    names = ",".join(f"class{n}" for n in range(50))
    path.write_text(f"client,{names}\n" + "".join(f"{c},1,3{',0' * 48}\n" for c in range(60)))
    header, _, *rows = printed(path, 80)
    assert header == ["client", "samples", "largest", "class", "classes"]
    assert rows[0] == ["0", "4", "class1", "(75%)", "2"]
    assert (rows[39][0], " ".join(rows[40])) == ("39", "20 more clients are in partition.csv.")
