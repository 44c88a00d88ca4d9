"""Populations that are drawn on demand: what is drawn, when, and that runs cannot tell."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.federations import compose, federate

from fedexp.core.description import Description
from fedexp.data.dataset import Split
from fedexp.data.drawn import DrawnClients, DrawnData, DrawnSource
from fedexp.data.federated import ClientData
from fedexp.data.partition_table import write_partition
from fedexp.data.readers.synthetic import Synthetic
from fedexp.errors import InputError
from fedexp.measures.partition import partition_picture
from fedexp.runtime.plan import plan
from fedexp.testing import check_part

SYNTHETIC = ["data=synthetic", "model=logistic", "data.size_max=80", "data.test_clients=20"]
TRAINING = ["local.epochs=1", "local.batch_size=16", "measure.personal=null"]


class Numbered(DrawnSource):
    """Client k has k + 2 samples (k, j) of the class j % 3."""

    def __init__(self, test_clients: int = 4) -> None:
        super().__init__(0.25, test_clients)
        self.drawn: list[int] = []

    def describe(self) -> Description:
        return Description("numbered", (2,), ("a", "b", "c"))

    def totals(self, num_clients: int) -> np.ndarray:
        return np.arange(num_clients) + 2

    def draw(self, client: int, total: int) -> Split:
        self.drawn.append(client)
        number = torch.arange(total)
        inputs = torch.stack([torch.full((total,), client), number], dim=1).float()
        return Split(inputs, number % 3)


def population(clients: int, test_clients: int = 4) -> tuple[DrawnData, Numbered]:
    source = Numbered(test_clients)
    return DrawnData(source, clients, 0, torch.device("cpu")), source


def test_only_evenly_spaced_clients_are_drawn_at_first() -> None:
    data, source = population(31)
    assert source.drawn == data.counted.tolist() == [0, 10, 20, 30]
    assert len(data.clients) == 31
    # floor(0.75 n) of n = 2, 3, ... train, but at least one does and one does not.
    assert data.sizes[:6].tolist() == [1, 2, 3, 3, 4, 5]
    assert source.drawn == [0, 10, 20, 30]


def test_a_client_trains_on_its_first_samples_and_tests_on_the_others() -> None:
    data, _ = population(31)
    client = data.clients[10]  # 12 samples: 9 and 3
    inputs, labels = next(client.batches(100))
    assert inputs.tolist() == [[10, j] for j in range(9)]
    assert labels.tolist() == client.labels.tolist() == [j % 3 for j in range(9)]
    assert client.class_counts.tolist() == [3, 3, 3]
    assert data.test.inputs[client.test_index].tolist() == [[10, 9], [10, 10], [10, 11]]
    assert len(data.clients[11].test_index) == 0
    assert data.test.inputs[:, 0].unique().tolist() == [0, 10, 20, 30]
    assert not len(client.held_out)


def test_class_counts_are_known_of_some_and_found_for_the_others() -> None:
    data, source = population(31)
    assert data.counted_classes.tolist() == [[1, 0, 0], [3, 3, 3], [6, 5, 5], [8, 8, 8]]
    source.drawn.clear()
    found = data.classes_of(torch.tensor([5, 20, 0, 30]))  # client 5 trains on 5 of its 7
    assert found.tolist() == [[2, 2, 1], [6, 5, 5], [1, 0, 0], [8, 8, 8]]
    assert source.drawn == [5]
    with pytest.raises(InputError, match=r"^data.test_clients=4: the class counts of all 31"):
        data.class_counts  # noqa: B018
    small, _ = population(3)
    assert small.class_counts.tolist() == [[1, 0, 0], [1, 1, 0], [1, 1, 1]]


def test_the_last_clients_are_kept_up_to_a_bound() -> None:
    data, source = population(31)
    source.drawn.clear()
    eight = data.clients[6].population.train.inputs.nbytes  # 6 samples of two float32
    clients = DrawnClients(31, data._draw, kept_bytes=2 * eight)
    for client in (6, 6, 5, 6, 4, 5, 30, 30, 6):
        assert clients[client].client == client
    # In order of use: 5 6 | 6 4 (5 goes, as 6 was used later) | 4 5 | 30 | 6
    assert source.drawn[1:] == [6, 5, 4, 5, 30, 6]
    assert clients[-1].client == 30
    with pytest.raises(IndexError):
        clients[31]


def test_table_and_picture_show_the_counted_clients(tmp_path: Path) -> None:
    data, _ = population(31)
    write_partition(tmp_path / "partition.csv", data)
    rows = (tmp_path / "partition.csv").read_text().splitlines()
    assert rows == ["client,a,b,c", "0,1,0,0", "10,3,3,3", "20,6,5,5", "30,8,8,8"]
    figure = partition_picture(data)
    title: Any = figure.get_suptitle()
    assert "4 of 31 clients, evenly spaced" in title
    assert [each.get_text() for each in figure.axes[1].get_xticklabels()] == ["0", "10", "20", "30"]


def test_a_table_is_whole_or_as_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data, _ = population(31)
    path = tmp_path / "partition.csv"
    path.write_text("before")
    monkeypatch.setattr(torch, "split", lambda *_, **__: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        write_partition(path, data)
    assert path.read_text() == "before"
    assert list(tmp_path.iterdir()) == [path]


def test_a_round_draws_its_cohort_once(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[int] = []
    draw = Synthetic.draw
    monkeypatch.setattr(
        Synthetic, "draw", lambda self, k, total: (drawn.append(k), draw(self, k, total))[1]
    )
    sizes = ["clients.count=100000", "clients.per_round=4", "rounds=2", "engine=vectorized"]
    sampler = ["sampler=hics", "sampler.warm_up_rounds=1"]
    federation = federate(*SYNTHETIC, *TRAINING, *sizes, *sampler)
    federation.measures.before_training(federation.server.broadcast(0), federation.server)
    assert len(drawn) == 20
    for round in (1, 2):
        drawn.clear()
        record = federation.run_round(round)
        assert 1 <= len(drawn) == len(set(drawn)) <= 4  # some may be in both cohorts
        assert len(drawn) == 4 or round == 2
    assert record.metrics["sampler/entropy_spearman"] <= 1
    assert {"sampler/times_chosen", "sampler/entropy"} <= set(record.figures)
    assert len(federation.store.clients_with_state) == 0


@pytest.mark.slow
def test_engines_agree_and_a_resumed_run_ends_with_the_same_bits() -> None:
    """5,000 clients, after a warm-up of one round, with control variates."""
    check_part(
        *SYNTHETIC,
        *["clients.count=5000", "clients.per_round=4", "data.subset=null"],
        *["sampler=hics", "sampler.warm_up_rounds=1", "regularizer=control_variates"],
        *["measure.personal=null", "optimizer.momentum=0"],
    )


def test_flipped_labels_and_stragglers_of_drawn_clients() -> None:
    federation = federate(
        *SYNTHETIC,
        *["clients.count=40", "clients.per_round=4", "faults=byzantine", "faults.straggle=1"],
        *["faults.byzantine=1", "faults.attack=label_flip", "faults.drop=0", "faults.nan=0"],
    )
    engine = federation.engine
    message = federation.server.broadcast(1)
    whole: ClientData = federation.data.clients[3]
    faulty = engine.training_data(3, message)
    assert faulty.labels.tolist() == (9 - whole.labels).tolist()
    assert len(faulty.local_batches(1, 16)) < len(whole.local_batches(1, 16))
    assert torch.equal(whole.labels, federation.data.clients[3].labels)


ALL = "needs the samples of all clients at once, which synthetic lacks"


@pytest.mark.parametrize(
    ("override", "line"),
    [
        (
            "partition=iid",
            f"partition=iid: {ALL}; use partition=natural",
        ),
        (
            "partition.test_split=classes",
            f"partition.test_split=classes: {ALL}; should be users",
        ),
        (
            "partition.long_tail=10",
            f"partition.long_tail=10.0: {ALL}; should be null",
        ),
        (
            "data.subset=100",
            f"data.subset=100: {ALL}; should be null",
        ),
        (
            "data.validation=0.1",
            f"data.validation=0.1: {ALL}; should be 0",
        ),
        (
            "+measure=membership",
            "measure.membership: needs the samples of all clients at once, which ",
        ),
        ("data.size_min=1", "data.size_min=1: should be greater than or equal to 2"),
        ("data.alpha=-1", "data.alpha=-1: should be greater than or equal to 0"),
    ],
)
def test_what_cannot_be_done_is_refused_in_one_line(override: str, line: str) -> None:
    with pytest.raises(InputError) as error:
        plan(compose(*SYNTHETIC, override))
    assert str(error.value).startswith(line)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("overrides", "line"),
    [
        (["sampler=hics_oracle"], "sampler.signal=labels: needs the class counts of all clients"),
        (
            ["model=mlp", "head=etf", "head.phi_normalization=population"],
            "head.phi_normalization=population: needs the class counts of all clients",
        ),
        (["sampler=clustered", "clients.count=30000"], "sampler: compares all pairs of clients"),
    ],
)
def test_what_needs_the_classes_of_all_clients_says_so(overrides: list[str], line: str) -> None:
    with pytest.raises(InputError) as error:
        federate("data=synthetic", "data.test_clients=10", *overrides)
    assert str(error.value).startswith(line)
