"""Names of natural clients in messages and in partition.csv."""

from pathlib import Path

import numpy as np
import pytest
import torch
from support.federations import compose
from support.natural_users import write_femnist
from support.tables import WARDS, tabular_options, write_table

from fedexp.data.client_names import client_names, listed
from fedexp.data.federated import FederatedData
from fedexp.data.load import load_data
from fedexp.data.partition_table import read_partition, write_partition
from fedexp.runtime import early

USERS = np.array(["ann", "bob", "ann", "cem"])


@pytest.mark.parametrize(
    ("clients", "names"),
    [
        ([[1], [0, 2]], ["bob", "ann"]),
        ([[2], [], [0]], ["ann", "", "ann"]),  # parts of one user; a client without samples
        ([[0, 1], [3]], None),
    ],
)
def test_a_client_has_the_name_of_its_only_user(
    clients: list[list[int]], names: list[str] | None
) -> None:
    positions = [np.array(each, dtype=np.int64) for each in clients]
    assert client_names(USERS, positions) == names
    assert client_names(np.array([1, 0, 1, 2]), positions, ("bob", "ann", "cem")) == names
    assert client_names(None, positions) is None


def test_a_message_names_a_few_clients() -> None:
    assert listed([1, 2], ["ann", "bob", ""]) == "1 (bob), 2"
    assert listed([0], ["a\nb"]) == r"0 (a\nb)"
    assert listed(range(1007), None) == "0, 1, 2, 3, 4 and 1,002 more"


def of_wards(folder: Path, *overrides: str) -> FederatedData:
    options = [*tabular_options(write_table(folder)), "model=mlp", "clients.count=3", *overrides]
    config = compose(*options, "clients.per_round=2")
    return load_data(config, early.check(config).source, torch.device("cpu"))


def test_leaf_s_clients_have_the_names_of_its_users(tmp_path: Path) -> None:
    write_femnist(tmp_path)
    options = ["data=femnist", f"data.root={tmp_path}", f"data.cache={tmp_path}"]
    others = ["partition=natural", "clients.count=4", "clients.per_round=2", "model=simple_cnn"]
    config = compose(*options, *others)
    data = load_data(config, early.check(config).source, torch.device("cpu"))
    assert data.names is not None
    assert set(data.names) < {f"f{user}" for user in range(6)}
    grey = [data.train.gather(each.train_index[:1])[0].mean() for each in data.clients]
    assert np.argsort(grey).tolist() == np.argsort(data.names).tolist()


def test_the_table_of_natural_clients_has_their_names(tmp_path: Path) -> None:
    data = of_wards(tmp_path, "partition=natural")
    assert data.names is not None
    assert set(data.names) == set(WARDS)
    path = tmp_path / "partition.csv"
    write_partition(path, data)
    header, *rows = [line.split(",") for line in path.read_text().splitlines()]
    assert header == ["client", "client_name", "benign", "malignant"]
    assert [row[:2] for row in rows] == [[str(n), name] for n, name in enumerate(data.names)]
    counts = read_partition(path, 3, 2)
    assert counts is not None
    assert torch.equal(counts, data.class_counts)
    assert read_partition(path, 3, 3) is None


def test_clients_of_other_partitions_have_numbers_only(tmp_path: Path) -> None:
    data = of_wards(tmp_path, "partition=iid")
    assert data.names is None
    path = tmp_path / "partition.csv"
    write_partition(path, data)
    assert path.read_text().splitlines()[0] == "client,benign,malignant"
