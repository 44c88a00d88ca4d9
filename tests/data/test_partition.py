import inspect
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from fedexp.config.build import Node
from fedexp.data import partition
from fedexp.data.partition import (
    dirichlet,
    iid,
    long_tail,
    multi_alpha,
    natural,
    nid2,
    partition_indices,
    shards,
)
from fedexp.data.split import class_counts
from fedexp.errors import InputError

Indices = list[np.ndarray]
Partition = Callable[..., Indices]

CONF = Path(__file__).parents[2] / "conf" / "partition"
TEN_BY_100 = np.tile(np.arange(10), 100)

quick = settings(max_examples=40, deadline=None)
label_arrays = st.lists(st.integers(0, 6), min_size=1, max_size=120).map(np.array)
clients_and_seed: dict[str, Any] = {
    "num_clients": st.integers(1, 12),
    "seed": st.integers(0, 2**31),
}


def node(name: str, **options: Any) -> Node:
    return {"_target_": f"fedexp.data.partition.{name}", **options}


def yaml_node(name: str) -> Node:
    values = yaml.safe_load((CONF / f"{name}.yaml").read_text())
    return dict(values)


def assert_complete(clients: Indices, num_samples: int, num_clients: int) -> None:
    """Nothing lost, nothing twice, one sorted int64 array for each client."""
    assert len(clients) == num_clients
    assert sorted(np.concatenate(clients).tolist()) == list(range(num_samples))
    for index in clients:
        assert index.dtype == np.int64
        assert np.all(np.diff(index) > 0)


def equal(one: Indices, other: Indices) -> bool:
    return all(map(np.array_equal, one, other))


# What every partition promises.

EVERY: dict[str, Partition] = {
    "iid": iid,
    "dirichlet": partial(dirichlet, beta=0.3),
    "dirichlet-balanced": partial(dirichlet, beta=0.3, balance=True),
    "shards": partial(shards, classes_per_client=2),
    "nid2": nid2,
    "multi_alpha": partial(multi_alpha, alphas=[0.01, 1.0]),
    "natural": natural,
}
every_partition = pytest.mark.parametrize("function", EVERY.values(), ids=EVERY.keys())


@every_partition
def test_is_complete_and_a_pure_function_of_the_seed(function: Partition) -> None:
    first = function(TEN_BY_100, num_clients=7, seed=3)
    again = function(TEN_BY_100.copy(), num_clients=7, seed=3)
    other = function(TEN_BY_100, num_clients=7, seed=4)
    assert_complete(first, 1000, 7)
    assert equal(first, again)
    assert not equal(first, other)


@quick
@given(labels=label_arrays, **clients_and_seed)
def test_iid_sizes_differ_by_at_most_one(labels: np.ndarray, num_clients: int, seed: int) -> None:
    clients = iid(labels, num_clients, seed)
    assert_complete(clients, len(labels), num_clients)
    sizes = [len(index) for index in clients]
    assert max(sizes) - min(sizes) <= 1


@quick
@given(
    labels=label_arrays,
    beta=st.sampled_from([1e-300, 1e-3, 0.09, 0.3, 1.0, 1e4]),
    balance=st.booleans(),
    **clients_and_seed,
)
def test_dirichlet_loses_nothing_at_any_beta(
    labels: np.ndarray, beta: float, balance: bool, num_clients: int, seed: int
) -> None:
    clients = dirichlet(labels, num_clients, beta, seed, balance=balance)
    assert_complete(clients, len(labels), num_clients)


@quick
@given(
    labels=label_arrays,
    alphas=st.lists(st.sampled_from([1e-3, 0.5, 10.0]), min_size=1, max_size=4),
    num_clients=st.integers(4, 12),
    seed=st.integers(0, 2**31),
)
def test_multi_alpha_loses_nothing(
    labels: np.ndarray, alphas: list[float], num_clients: int, seed: int
) -> None:
    assert_complete(multi_alpha(labels, num_clients, alphas, seed), len(labels), num_clients)


@quick
@given(
    num_classes=st.integers(1, 8),
    num_clients=st.integers(1, 15),
    per_client=st.integers(1, 8),
    seed=st.integers(0, 2**31),
)
def test_shards_hold_their_classes_exactly(
    num_classes: int, num_clients: int, per_client: int, seed: int
) -> None:
    labels = np.tile(np.arange(num_classes), 16)
    if not per_client <= num_classes <= per_client * num_clients:
        with pytest.raises(InputError, match=f"the data have {num_classes} classes"):
            shards(labels, num_clients, per_client, seed)
        return
    clients = shards(labels, num_clients, per_client, seed)
    assert_complete(clients, len(labels), num_clients)
    counts = class_counts(labels, clients, num_classes)
    assert np.all((counts > 0).sum(axis=1) == per_client)
    holders = (counts > 0).sum(axis=0)
    assert holders.min() >= 1
    assert holders.max() - holders.min() <= 1
    for label in range(num_classes):
        held = counts[counts[:, label] > 0, label]
        assert held.max() - held.min() <= 1


@quick
@given(num_classes=st.integers(1, 12), num_clients=st.integers(2, 20), seed=st.integers(0, 2**31))
def test_nid2_has_one_client_with_all_classes(
    num_classes: int, num_clients: int, seed: int
) -> None:
    labels = np.tile(np.arange(num_classes), 30)
    clients = nid2(labels, num_clients, seed)
    assert_complete(clients, len(labels), num_clients)
    held = class_counts(labels, clients, num_classes) > 0
    assert held[-1].all()
    assert held[:-1].any(axis=0).all()
    per_biased = held[:-1].sum(axis=1)
    assert per_biased.max() - per_biased.min() <= 1


@quick
@given(
    users=st.lists(st.sampled_from(["ann", "bob", "cem", "dan", "eve"]), min_size=1, max_size=60),
    seed=st.integers(0, 2**31),
    data=st.data(),
)
def test_natural_keeps_a_users_samples_together(
    users: list[str], seed: int, data: st.DataObject
) -> None:
    num_clients = data.draw(st.integers(1, len(set(users))))
    clients = natural(np.array(users), num_clients, seed)
    assert_complete(clients, len(users), num_clients)
    held = [{users[sample] for sample in index} for index in clients]
    assert sum(map(len, held)) == len(set(users))
    assert max(map(len, held)) - min(map(len, held)) <= 1


# Worked examples.


def test_shards_p10c2_gives_each_client_two_halves() -> None:
    counts = class_counts(TEN_BY_100, shards(TEN_BY_100, 10, 2, seed=0), 10)
    assert [sorted(row[row > 0]) for row in counts] == [[50, 50]] * 10
    assert np.all((counts > 0).sum(axis=0) == 2)


def test_nid2_as_published_has_five_biased_clients_and_one_of_all() -> None:
    counts = class_counts(TEN_BY_100, nid2(TEN_BY_100, 6, seed=0), 10)
    assert [sorted(row[row > 0]) for row in counts[:5]] == [[50, 50]] * 5
    assert counts[5].tolist() == [50] * 10


def test_nid2_with_more_biased_clients_than_classes_gives_each_one_class() -> None:
    labels = np.repeat([0, 1], 12)
    counts = class_counts(labels, nid2(labels, 5, seed=0), 2)
    # Each class has two biased holders and the last client: 12 / 3 = 4 samples each.
    assert sorted(map(tuple, counts[:4])) == [(0, 4), (0, 4), (4, 0), (4, 0)]
    assert counts[4].tolist() == [4, 4]


def test_labels_may_skip_classes() -> None:
    labels = np.repeat([2, 5], 10)
    assert [sorted(set(labels[index])) for index in nid2(labels, 2, seed=0)] == [[2, 5]] * 2
    assert sorted(len(set(labels[index])) for index in shards(labels, 4, 1, seed=0)) == [1] * 4


@pytest.mark.parametrize("beta", [0.05, 0.3, 2.0])
def test_dirichlet_shares_have_the_mean_and_variance_of_dir_beta(beta: float) -> None:
    num_clients, labels = 5, np.zeros(1000, dtype=np.int64)
    draws = [dirichlet(labels, num_clients, beta, seed) for seed in range(400)]
    shares = np.array([[len(index) / 1000 for index in clients] for clients in draws])
    # Dir(beta) over N: mean 1/N, second moment (beta + 1) / (N (N beta + 1)).
    assert shares.mean(axis=0) == pytest.approx(np.full(num_clients, 1 / num_clients), abs=0.07)
    expected = (beta + 1) / (num_clients * (num_clients * beta + 1))
    assert (shares**2).mean() == pytest.approx(expected, rel=0.08)


def test_dirichlet_at_tiny_beta_gives_whole_classes_to_clients_and_favours_nobody() -> None:
    labels = np.repeat(np.arange(500), 2)
    counts = class_counts(labels, dirichlet(labels, 5, 1e-9, seed=0), 500)
    assert set(np.unique(counts)) == {0, 2}
    assert np.all(np.abs((counts > 0).sum(axis=1) - 100) < 40)


def test_balance_stops_full_clients() -> None:
    """At beta near zero every class goes to one client: balanced, each of ten gets one class."""
    plain = [len(index) for index in dirichlet(TEN_BY_100, 10, 1e-9, seed=0)]
    balanced = [len(index) for index in dirichlet(TEN_BY_100, 10, 1e-9, seed=0, balance=True)]
    assert max(plain) > 100
    assert balanced == [100] * 10


def test_min_size_draws_until_it_is_reached() -> None:
    free = dirichlet(TEN_BY_100, 10, 0.1, seed=0)
    bounded = dirichlet(TEN_BY_100, 10, 0.1, seed=0, min_size=30, max_tries=1000)
    assert min(map(len, free)) < 30 <= min(map(len, bounded))
    assert_complete(bounded, 1000, 10)


def test_multi_alpha_blocks_are_equal_parts_of_different_skew() -> None:
    clients = multi_alpha(TEN_BY_100, 10, [0.001, 1000.0], seed=0)
    assert sum(map(len, clients[:5])) == sum(map(len, clients[5:])) == 500
    classes = (class_counts(TEN_BY_100, clients, 10) > 0).sum(axis=1)
    assert classes[:5].sum() <= 13  # ten classes, nearly each with one client of five
    assert classes[5:].tolist() == [10] * 5


@pytest.mark.parametrize(
    ("sizes", "rho", "expected"),
    [
        # 100 * 100^(-j/2) = 100, 10, 1
        ([100, 100, 100], 100, [100, 10, 1]),
        # 243 * 243^(-j/5) = 243, 81, 27, 9, 3, 1
        ([243] * 6, 243, [243, 81, 27, 9, 3, 1]),
        # n_max is 90: 90, 30, 10; the first has only 50
        ([50, 90, 90], 9, [50, 30, 10]),
        # at least one
        ([4, 4, 4], 100, [4, 1, 1]),
        ([7, 5], 1, [7, 5]),
        ([7], 10, [7]),
        # absent classes do not count
        ([16, 0, 16, 16], 16, [16, 0, 4, 1]),
    ],
)
def test_long_tail_sizes(sizes: list[int], rho: float, expected: list[int]) -> None:
    labels = np.random.default_rng(0).permutation(np.repeat(np.arange(len(sizes)), sizes))
    kept = long_tail(labels, rho, seed=0)
    assert np.bincount(labels[kept], minlength=len(sizes)).tolist() == expected
    assert np.all(np.diff(kept) > 0)


def test_long_tail_of_cifar_has_its_known_sizes() -> None:
    labels = np.repeat(np.arange(10), 5000)
    sizes = np.bincount(labels[long_tail(labels, 100, seed=0)])
    assert sizes.tolist() == [5000, 2997, 1796, 1077, 645, 387, 232, 139, 83, 50]


def test_long_tail_keeps_other_samples_with_another_seed() -> None:
    assert np.array_equal(long_tail(TEN_BY_100, 10, 1), long_tail(TEN_BY_100, 10, 1))
    assert not np.array_equal(long_tail(TEN_BY_100, 10, 1), long_tail(TEN_BY_100, 10, 2))


def test_a_thousand_clients_at_tiny_beta() -> None:
    labels = np.tile(np.arange(10), 6000)
    assert_complete(dirichlet(labels, 1000, 1e-3, seed=0), 60000, 1000)


# What cannot work.


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: dirichlet(TEN_BY_100, 10, 0.3, 0, min_size=101),
            r"^partition.min_size=101: 1000 samples are too few for clients.count=10$",
        ),
        (
            lambda: dirichlet(np.zeros(100, dtype=int), 2, 1e-9, 0, min_size=1, max_tries=5),
            r"^partition.min_size=1: not reached in partition.max_tries=5 draws with "
            r"partition.beta=1e-09 and clients.count=2; the best had 0$",
        ),
        (
            lambda: shards(TEN_BY_100, 3, 2, 0),
            r"^partition.classes_per_client=2 with clients.count=3: the data have 10 classes",
        ),
        (
            lambda: shards(np.array([0, 0, 0, 1]), 2, 2, 0),
            r"^partition.classes_per_client=2 .*: class 1 has 1 samples for 2 holders$",
        ),
        (lambda: nid2(TEN_BY_100, 1, 0), r"^clients.count=1: partition=nid2 needs at least 2$"),
        (
            lambda: multi_alpha(TEN_BY_100, 1, [0.1, 1.0], 0),
            r"^partition.alphas=\[0.1, 1.0\]: at most clients.count=1 values",
        ),
        (lambda: natural(None, 2, 0), r"^partition=natural: this dataset has no user ids"),
        (
            lambda: natural(np.array(["a", "b"]), 3, 0),
            r"^clients.count=3: partition=natural allows at most 2, the number of users$",
        ),
    ],
)
def test_errors_name_key_value_and_what_is_allowed(
    call: Callable[[], object], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        call()


def test_the_min_size_error_reports_the_best_draw() -> None:
    best = max(min(map(len, dirichlet(TEN_BY_100, 4, 0.5, seed))) for seed in range(3))
    with pytest.raises(InputError, match=r"the best had (\d+)$") as caught:
        dirichlet(TEN_BY_100, 4, 0.5, 0, min_size=250, max_tries=50)
    assert best // 2 < int(str(caught.value).rsplit(maxsplit=1)[-1]) < 250


# From the config.


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


@pytest.mark.parametrize("name", sorted({p.stem for p in CONF.glob("*.yaml")}))
def test_every_shipped_option_builds_and_runs(name: str) -> None:
    assert_complete(run(yaml_node(name), users=np.arange(1000) // 100), 1000, 5)


def test_yaml_and_signature_of_dirichlet_agree_on_defaults() -> None:
    options = yaml_node("dirichlet")
    for name, parameter in inspect.signature(dirichlet).parameters.items():
        if parameter.default is not parameter.empty:
            assert options[name] == parameter.default


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


# The cache.


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How often ``iid`` is called."""
    made: list[int] = []

    def counted(labels: np.ndarray, num_clients: int, seed: int) -> list[np.ndarray]:
        made.append(seed)
        return iid(labels, num_clients, seed)

    monkeypatch.setattr(partition, "iid", counted)
    return made


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


def test_an_edited_function_is_called_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = tmp_path / "partitions_of_mine.py"
    one_for_all = (
        "def local_clients(labels, num_clients, seed):\n    return [labels[:0]] * {} + [labels]\n"
    )
    module.write_text(one_for_all.format(4))
    monkeypatch.syspath_prepend(str(tmp_path))
    mine = {"_target_": "partitions_of_mine.mine"}
    run(mine, cache=tmp_path, labels=np.arange(10))
    module.write_text(one_for_all.format(4) + "# edited\n")
    run(mine, cache=tmp_path, labels=np.arange(10))
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
