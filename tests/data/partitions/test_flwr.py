import logging
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.federations import compose, load
from support.partition_checks import assert_complete
from support.refusals import refused

from fedexp.data.configured_partition import partition_indices
from fedexp.errors import InputError
from fedexp.runtime.plan import plan

LABELS = np.repeat(np.arange(5), 40)
USERS = np.array([f"user {number % 4}" for number in range(200)])


def built(name: str, arguments: dict[str, Any], seed: int = 0) -> list[np.ndarray]:
    """What the partitioner makes of the labels for four clients, built as from a config."""
    node = {"_target_": f"flwr_datasets.partitioner.{name}", **arguments}
    whole = {"_target_": "fedexp.data.partitions.flwr", "partitioner": node}
    return partition_indices(whole, LABELS, USERS, 4, seed, cache=None, long_tail=None)


def clients(name: str, seed: int = 0, **arguments: Any) -> list[np.ndarray]:
    """As ``built``."""
    return built(name, arguments, seed)


WHOLE: dict[str, dict[str, Any]] = {
    "IidPartitioner": {},
    "DirichletPartitioner": {"alpha": 0.5, "min_partition_size": 1},
    "PathologicalPartitioner": {"num_classes_per_partition": 3},
    "ShardPartitioner": {"num_shards_per_partition": 2, "keep_incomplete_shard": True},
    "LinearPartitioner": {},
    "NaturalIdPartitioner": {"partition_by": "user"},
}


@pytest.mark.parametrize("name", WHOLE)
def test_every_sample_goes_to_one_client_keyed_by_the_seed(name: str) -> None:
    made = clients(name, **WHOLE[name])
    assert_complete(made, len(LABELS), 4)
    for one, other in zip(made, clients(name, **WHOLE[name]), strict=True):
        assert np.array_equal(one, other)
    again = clients(name, seed=1, **WHOLE[name])
    differs = any(not np.array_equal(a, b) for a, b in zip(made, again, strict=True))
    assert differs == (name != "NaturalIdPartitioner")


def test_each_has_the_classes_that_it_should() -> None:
    for index in clients("PathologicalPartitioner", num_classes_per_partition=2):
        assert len(np.unique(LABELS[index])) == 2
    for index in clients("NaturalIdPartitioner", partition_by="user"):
        assert len(np.unique(USERS[index])) == 1
    # Contiguous parts of data that are sorted by class: in a random order all classes are in each.
    assert all(len(np.unique(LABELS[index])) == 5 for index in clients("IidPartitioner"))


def test_a_smaller_alpha_is_more_skewed() -> None:
    largest = []
    for alpha in (0.1, 100.0):
        made = [
            clients("DirichletPartitioner", alpha=alpha, seed=seed, min_partition_size=1)
            for seed in range(5)
        ]
        counts = [np.bincount(LABELS[index], minlength=5) for each in made for index in each]
        largest.append(np.mean([each.max() / each.sum() for each in counts]))
    assert largest[0] > largest[1] + 0.2


def test_its_own_seed_may_be_set() -> None:
    """The run's seed orders the rows; the sizes are what the partitioner draws."""
    arguments = {"alpha": 0.5, "min_partition_size": 1}
    sizes = [
        [len(index) for index in built("DirichletPartitioner", arguments | {"seed": 3}, run_seed)]
        for run_seed in (0, 1)
    ]
    assert sizes[0] == sizes[1]
    assert sizes[0] != [len(index) for index in clients("DirichletPartitioner", **arguments)]


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        ("Dirichlet", {}, r"^partition\.partitioner\._target_=.*Dirichlet: cannot be imported"),
        ("DirichletPartitioner", {}, r"^partition\.partitioner\.alpha: is missing"),
        ("DirichletPartitioner", {"beta": 1}, r"^partition\.partitioner\.beta: unknown key; there"),
        (
            "DirichletPartitioner",
            {"alpha": -1.0},
            r"Partitioner refuses: Alpha values should be st",
        ),
        ("IidPartitioner", {"num_partitions": 3}, r"num_partitions: unknown key"),
        ("NaturalIdPartitioner", {}, r"^partition\._target_: makes 5 parts; should be as many as"),
        ("NaturalIdPartitioner", {"partition_by": "x"}, r"NaturalIdPartitioner refuses: Column"),
        ("VerticalEvenPartitioner", {}, r"VerticalEvenPartitioner refuses: it divides columns"),
    ],
)
def test_what_cannot_work_is_one_line(name: str, arguments: dict[str, Any], message: str) -> None:
    with refused(message):
        clients(name, **arguments)


def test_its_warnings_are_one_line_each_and_its_bars_are_not_drawn(
    caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    with caplog.at_level(logging.WARNING):
        clients("SizePartitioner", partition_sizes=[10, 20, 30, 40])
        clients("NaturalIdPartitioner", partition_by="user")
    (line,) = caplog.messages
    assert line.startswith("SizePartitioner: The sum of partition sizes is 100")
    printed = capfd.readouterr()
    assert printed.out == ""
    assert "%|" not in printed.err  # a progress bar


def test_without_the_library_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "flwr_datasets.partitioner", None)
    with pytest.raises(InputError, match=r"^partition=flwr: needs flwr-datasets, .*fedexp\[flwr\]"):
        clients("IidPartitioner")


OWN = "partition.partitioner._target_=flwr_datasets.partitioner"


def test_from_the_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDEXP_CACHE", str(tmp_path))
    words = ["partition=flwr", f"{OWN}.DirichletPartitioner"]
    words += ["clients.count=5", "clients.per_round=2"]
    data = load(*words, "+partition.partitioner.alpha=0.3")
    assert data.class_counts.shape == (5, 10)
    assert data.class_counts.sum() == 1437
    kept = load(*words, "+partition.partitioner.alpha=0.3")  # of the cache
    assert torch.equal(kept.class_counts, data.class_counts)
    other = load(*words, "+partition.partitioner.alpha=30")
    assert not torch.equal(other.class_counts, data.class_counts)


def test_a_wrong_partitioner_is_found_before_data_are_loaded() -> None:
    with pytest.raises(InputError, match=r"^partition\.partitioner\.alpha: is missing"):
        plan(compose("partition=flwr", f"{OWN}.DirichletPartitioner"))
    with pytest.raises(InputError, match=r"_target_=torch\.nn\.Linear: should be a partitioner"):
        plan(compose("partition=flwr", "partition.partitioner._target_=torch.nn.Linear"))
    with pytest.raises(InputError, match=r"^partition\.partitioner\._target_: must be given"):
        compose("partition=flwr")
