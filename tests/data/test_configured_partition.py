import inspect
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from support.partition_checks import TEN_BY_100, Indices, assert_complete, equal

from fedexp.config.build import Node, locate
from fedexp.config.schema import common_keys
from fedexp.data import partitions
from fedexp.data.configured_partition import partition_indices
from fedexp.data.partitions import dirichlet, iid, long_tail
from fedexp.errors import InputError

CONF = Path(__file__).parents[2] / "conf" / "partition"


def node(name: str, **options: Any) -> Node:
    return {"_target_": f"fedexp.data.partitions.{name}", **options}


def yaml_node(name: str) -> Node:
    values = yaml.safe_load((CONF / f"{name}.yaml").read_text())
    bases = [base for base in values.pop("defaults", []) if base != "_self_"]
    merged = {key: value for base in bases for key, value in yaml_node(base).items()} | values
    return {key: value for key, value in merged.items() if key not in common_keys("partition")}


def run(
    node: Node,
    labels: np.ndarray = TEN_BY_100,
    users: np.ndarray | None = None,
    num_clients: int = 5,
    seed: int = 0,
    cache: Path | None = None,
    rho: float | None = None,
) -> Indices:
    return partition_indices(node, labels, users, num_clients, seed, cache, rho)


OPTIONS = sorted(path.stem for path in CONF.glob("*.yaml"))
SMALL: dict[str, dict[str, Any]] = {"legacy_dirichlet": {"min_size": 10}}  # of 1,000 samples
SMALL["flwr"] = {"partitioner": {"_target_": "flwr_datasets.partitioner.IidPartitioner"}}


@pytest.mark.parametrize("name", OPTIONS)
def test_every_shipped_option_builds_and_runs(name: str) -> None:
    options = yaml_node(name) | SMALL.get(name, {})
    assert_complete(run(options, users=np.arange(1000) // 200), 1000, 5)


def test_yaml_and_signature_agree_on_defaults() -> None:
    compared = set()
    for name in OPTIONS:
        options = yaml_node(name)
        function = locate("partition", options["_target_"])
        if function.__name__ == name:  # not another option of a function, with values of its own
            for key, parameter in inspect.signature(function).parameters.items():
                if parameter.default is not parameter.empty:
                    assert options[key] == parameter.default, (name, key)
                    compared.add(name)
    assert len(compared) > 5


def test_config_gives_what_the_function_gives() -> None:
    expected = dirichlet(TEN_BY_100, 5, 0.3, 0)
    assert equal(run(yaml_node("dirichlet")), expected)


def test_long_tail_composes_and_indices_point_into_the_whole_set() -> None:
    clients = run(node("iid"), rho=10)
    assert sorted(np.concatenate(clients)) == long_tail(TEN_BY_100, 10, 0).tolist()


def test_long_tail_thins_out_users_alike() -> None:
    users = np.arange(1000) % 5
    clients = run(node("natural"), users=users, rho=10)
    assert [len(set(users[index])) for index in clients] == [1] * 5


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (node("dirichlet", beta=0), r"^partition.beta=0: should be greater than 0"),
        (node("dirichlet", beta=float("inf")), r"^partition.beta=inf: should be a finite number"),
        (node("dirichlet", beta=1, min_size=-1), r"^partition.min_size=-1: should be"),
        (node("shards", classes_per_client=0), r"^partition.classes_per_client=0: should be"),
        (node("multi_alpha", alphas=[1, -1]), r"^partition.alphas.1=-1: should be greater than 0"),
        (node("multi_alpha", alphas=[]), r"^partition.alphas=\[\]: "),
        (node("iid", beta=1), r"^partition.beta: unknown key"),
        (node("natural"), r"no user ids"),
    ],
)
def test_a_wrong_option_is_one_line(wrong: Node, message: str) -> None:
    with pytest.raises(InputError, match=message):
        run(wrong)


def test_no_samples_is_an_error() -> None:
    with pytest.raises(InputError, match="no client would have data"):
        run(node("iid"), labels=np.array([], dtype=np.int64))


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How often ``iid`` is called."""
    made: list[int] = []

    def counted(num_samples: int, num_clients: int, seed: int) -> list[np.ndarray]:
        made.append(seed)
        return iid(num_samples, num_clients, seed)

    monkeypatch.setattr(partitions, "iid", counted)
    return made


def test_the_indices_are_sorted_also_without_a_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unsorted(num_samples: int, num_clients: int, seed: int) -> list[np.ndarray]:
        return [index[::-1] for index in iid(num_samples, num_clients, seed)]

    monkeypatch.setattr(partitions, "iid", unsorted)
    assert equal(run(node("iid")), run(node("iid"), cache=tmp_path))


@pytest.mark.parametrize("rho", [None, 10.0])
def test_a_second_call_reads_the_first_ones_file(
    tmp_path: Path, calls: list[int], rho: float | None
) -> None:
    first = run(node("iid"), cache=tmp_path, rho=rho)
    second = run(node("iid"), cache=tmp_path, rho=rho)
    assert len(calls) == 1
    assert len(second) == 5
    assert equal(first, second)
    assert all(index.dtype == np.int64 for index in second)
    assert [path.suffix for path in (tmp_path / "partitions").iterdir()] == [".npz"]


@pytest.mark.parametrize(
    "change",
    [
        {"num_clients": 6},
        {"seed": 1},
        {"rho": 2.0},
        {"labels": TEN_BY_100[::-1].copy()},
        {"users": np.arange(1000)},
    ],
    ids=lambda change: next(iter(change)),
)
def test_whatever_the_result_depends_on_has_a_file_of_its_own(
    tmp_path: Path, calls: list[int], change: dict[str, Any]
) -> None:
    run(node("iid"), cache=tmp_path)
    run(node("iid"), cache=tmp_path, **change)
    assert len(calls) == 2
    assert len(list((tmp_path / "partitions").iterdir())) == 2


def test_options_have_files_of_their_own(tmp_path: Path) -> None:
    run(node("dirichlet", beta=0.1), cache=tmp_path)
    run(node("dirichlet", beta=0.2), cache=tmp_path)
    assert len(list((tmp_path / "partitions").iterdir())) == 2


ONE_FOR_ALL = """import numpy as np


def one_for_all(labels, num_clients, seed) -> list:
    return [np.arange(0)] * 4 + [np.arange(len(labels))]
"""
OWN = """from flwr_datasets.partitioner import IidPartitioner


class Own(IidPartitioner):
    pass
"""


@pytest.mark.parametrize(
    ("source", "edited"),
    [
        (ONE_FOR_ALL, {"_target_": "own_partition.one_for_all"}),
        (OWN, node("flwr", partitioner={"_target_": "own_partition.Own"})),
    ],
    ids=["function", "partitioner of flwr"],
)
def test_edited_code_is_called_again(
    source: str, edited: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = tmp_path / "own_partition.py"
    module.write_text(source)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "own_partition", raising=False)
    run(edited, cache=tmp_path)
    module.write_text(f"{source}# edited\n")
    run(edited, cache=tmp_path)
    assert len(list((tmp_path / "partitions").iterdir())) == 2


def truncated(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def flipped(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


DAMAGES: dict[str, Callable[[Path], object]] = {
    "empty": lambda path: path.write_bytes(b""),
    "text": lambda path: path.write_text("not a zip file"),
    "truncated": truncated,
    "flipped bit": flipped,
    "other name": lambda path: np.savez(path, client=np.zeros(1000, dtype=np.int64)),
    "other length": lambda path: np.savez(path, owner=np.zeros(10, dtype=np.int64)),
    "other type": lambda path: np.savez(path, owner=np.zeros(1000)),
    "unknown client": lambda path: np.savez(path, owner=np.full(1000, 6)),
    "pickle": lambda path: np.savez(path, owner=np.array([None] * 1000)),
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES.keys())
def test_a_damaged_file_is_made_again(
    tmp_path: Path, calls: list[int], damage: Callable[[Path], object]
) -> None:
    first = run(node("iid"), cache=tmp_path)
    (path,) = (tmp_path / "partitions").iterdir()
    damage(path)
    assert equal(run(node("iid"), cache=tmp_path), first)
    assert len(calls) == 2
    run(node("iid"), cache=tmp_path)
    assert len(calls) == 2


def test_a_cache_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "partitions").write_text("a file where the folder should be")
    with pytest.raises(InputError, match=r"^data.cache: .*partitions.* cannot be written"):
        run(node("iid"), cache=tmp_path)


@pytest.mark.parametrize(
    ("result", "message"),
    [
        ("[labels] * (num_clients + 1)", "makes 6 parts; should be as many as clients.count=5"),
        ("[labels] * num_clients", "gives a sample to several clients"),
    ],
)
def test_what_is_no_partition_is_refused_in_one_line(
    result: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = f"no_partition_{len(result)}"
    source = f"def part(labels, num_clients, seed) -> list:\n    return {result}\n"
    (tmp_path / f"{name}.py").write_text(source)
    monkeypatch.syspath_prepend(str(tmp_path))
    for cache in (None, tmp_path):
        with pytest.raises(InputError, match=f"^partition._target_: {message}"):
            run({"_target_": f"{name}.part"}, labels=np.arange(10), cache=cache)
