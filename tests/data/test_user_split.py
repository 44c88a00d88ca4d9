"""Test and validation samples of natural users: whose they are, and that nothing leaks."""

import logging
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from support import federations
from support.federations import compose
from support.natural_users import PLAY_OPTIONS, write_femnist, write_play, write_shakespeare

from fedexp.core.description import Description
from fedexp.data.dataset import Dataset, Split
from fedexp.data.user_split import hold_out_ends, match_users, validation_split
from fedexp.errors import InputError
from fedexp.runtime.plan import plan


def split(users: list[str] | None, overlap: int = 0, size: int = 0) -> Split:
    count = len(users) if users else size
    owner = None if users is None else np.array(users)
    return Split(torch.zeros(count, 2), torch.arange(count) % 2, owner, overlap)


def dataset(train: Split, test: Split) -> Dataset:
    return Dataset(Description("toy", (2,), ("a", "b")), train, test)


def test_a_client_gets_its_users_test_samples_and_the_others_are_dropped() -> None:
    whole = dataset(split(list("aabbccdd")), split(list("dcbacbaz")))
    clients = [np.array([2, 3]), np.array([0, 1, 6, 7])]  # b; a and d
    kept, tests = match_users(whole, clients, seed=0)
    assert np.asarray(kept.test.users).tolist() == ["d", "b", "a", "b", "a"]
    assert [index.tolist() for index in tests] == [[1, 3], [0, 2, 4]]
    assert kept.train is whole.train


def test_parts_of_a_user_share_its_test_samples_in_proportion() -> None:
    train, test = ["a"] * 60 + ["b"] * 10, ["a"] * 30 + ["b"] * 5
    clients = [np.arange(20), np.arange(20, 60), np.arange(60, 70)]
    kept, tests = match_users(dataset(split(train), split(test)), clients, seed=0)
    assert [len(index) for index in tests] == [10, 20, 5]
    assert sorted(np.concatenate(tests)) == list(range(35))
    assert set(np.asarray(kept.test.users)[tests[2]]) == {"b"}


def test_a_client_without_test_samples_is_counted(caplog: pytest.LogCaptureFixture) -> None:
    clients = [np.array([0]), np.array([1]), np.empty(0, np.int64)]
    with caplog.at_level(logging.WARNING):
        _, tests = match_users(dataset(split(["a", "b"]), split(["b"])), clients, seed=0)
    assert [index.tolist() for index in tests] == [[], [0], []]
    assert "1 clients have no test samples of their own: 0 (a)\n" in caplog.text


@pytest.mark.parametrize(
    ("train", "test", "message"),
    [
        (split(None, size=2), split(None, size=2), "has no user ids; use classes"),
        (split(["a", "b"]), split(["c", "d"]), "has no samples of the clients' users"),
    ],
)
def test_no_test_samples_at_all_is_one_line(train: Split, test: Split, message: str) -> None:
    with pytest.raises(InputError, match=rf"^partition\.test_split=users: .*{message}"):
        match_users(dataset(train, test), [np.array([0, 1])], seed=0)


def test_the_end_of_each_user_is_held_out_behind_a_gap() -> None:
    users = np.array(list("aaaaaaaaaabbbbb"))
    clients = [np.array([0, 2, 4, 6, 7, 8, 10, 12, 14]), np.array([1, 3, 5, 9, 11, 13])]
    train, held = hold_out_ends(users, clients, fraction=0.2, overlap=3)
    # a: 8 and 9 are held out, 5 to 7 overlap with them; b: 14, and 11 to 13.
    assert [index.tolist() for index in train] == [[0, 2, 4, 10], [1, 3]]
    assert [index.tolist() for index in held] == [[8, 14], [9]]


@pytest.mark.parametrize(("fraction", "overlap"), [(0.2, 5), (0.5, 1), (0.1, 0)])
def test_a_user_with_too_little_holds_out_nothing(fraction: float, overlap: int) -> None:
    clients = [np.arange(5)]
    train, held = hold_out_ends(np.array(["a"] * 5), clients, fraction, overlap)
    assert (train[0].tolist(), held[0].tolist()) in (
        [(list(range(5)), [])] if fraction != 0.5 else [([0, 1], [3, 4])]
    )


def test_nothing_held_out_is_one_line() -> None:
    train = split(["a"] * 5, overlap=4)
    with pytest.raises(InputError, match=r"^data\.validation=0\.2: no user has enough"):
        validation_split(train, [np.arange(5)], 0.2, seed=0)
    many = split(["a"] * 500, overlap=4)
    with pytest.raises(InputError, match=r"^data\.validation=0\.5: .* should be below 0\.5$"):
        validation_split(many, [np.arange(500)], 0.5, seed=0)
    kept, held = validation_split(train, [np.arange(5)], 0.0, seed=0)
    assert (kept[0].tolist(), held[0].tolist()) == ([0, 1, 2, 3, 4], [])


# Whole datasets, from the command line's words.

load = partial(federations.load, "partition=natural", "clients.count=3", "clients.per_round=2")


@pytest.fixture
def sets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, list[str]]:
    """Data with natural users: the overrides that choose them."""
    monkeypatch.setenv("FEDEXP_CACHE", str(tmp_path / "cache"))
    write_femnist(tmp_path / "femnist")
    write_shakespeare(tmp_path / "shakespeare")
    write_play(tmp_path / "play.txt")
    lstm = "model=char_lstm"
    return {
        "femnist": ["data=femnist", f"data.root={tmp_path / 'femnist'}", "model=simple_cnn"],
        "shakespeare": ["data=shakespeare", f"data.root={tmp_path / 'shakespeare'}", lstm],
        "text": ["data=text", f"data.path={tmp_path / 'play.txt'}", *PLAY_OPTIONS, lstm],
    }


NAMES = ["femnist", "shakespeare", "text"]


@pytest.mark.parametrize("name", NAMES)
def test_a_client_is_tested_on_its_own_user_and_the_union_is_the_test_split(
    sets: dict[str, list[str]], name: str
) -> None:
    config = compose("partition=natural", *sets[name], "clients.count=3", "clients.per_round=2")
    whole = plan(config).source.load(config.data.cache)
    data = load(*sets[name])
    users, test_users = np.asarray(whole.train.users), np.asarray(whole.test.users)
    chosen = [set(users[client.train_index.numpy()]) for client in data.clients]
    assert all(len(each) == 1 for each in chosen)
    kept = np.isin(test_users, [user for each in chosen for user in each])
    assert len(data.test) == kept.sum()
    for client, each in zip(data.clients, chosen, strict=True):
        assert client.num_samples == (users == next(iter(each))).sum()
        assert set(test_users[kept][client.test_index.numpy()]) == each


def test_validation_text_is_not_in_training_text(sets: dict[str, list[str]]) -> None:
    """Windows are located in the text of their role, by their place among the role's windows."""
    config = compose("partition=natural", *sets["text"], "clients.count=3", "clients.per_round=2")
    train = plan(config).source.load(config.data.cache).train
    users = np.asarray(train.users)
    data = load(*sets["text"], "data.validation=0.2")
    length, stride = 8, 4
    for client in data.clients:
        first = np.flatnonzero(users == users[client.train_index[0]])[0]

        def characters(index: torch.Tensor, first: int = int(first)) -> set[int]:
            starts = stride * (index - first)
            return {int(start) + i for start in starts for i in range(length + 1)}

        assert not characters(client.train_index) & characters(client.validation_index)


def test_parts_of_users(sets: dict[str, list[str]]) -> None:
    """Six writers of 9 + 3 samples, 12 clients: two parts each."""
    data = load(*sets["femnist"], "clients.count=12", "partition.split_users=even")
    assert sorted(client.num_samples for client in data.clients) == [4] * 6 + [5] * 6
    assert sorted(len(client.test_index) for client in data.clients) == [1] * 6 + [2] * 6
    assert len(data.test) == 18


def test_test_data_by_class_are_an_option(sets: dict[str, list[str]]) -> None:
    data = load(*sets["femnist"], "partition.test_split=classes")
    assert len(data.test) == 18


def test_users_that_are_in_one_split_only_are_one_line(sets: dict[str, list[str]]) -> None:
    apart = [*sets["text"], "data.split=users", "clients.count=2"]
    with pytest.raises(InputError, match=r"^partition\.test_split=users: .* data\.split=within"):
        load(*apart)
    data = load(*apart, "partition.test_split=classes")
    assert sum(len(client.test_index) for client in data.clients) > 0


def test_more_clients_than_users_is_one_line(sets: dict[str, list[str]]) -> None:
    with pytest.raises(InputError, match=r"^clients\.count=7: .* at most 6, the number of users"):
        load(*sets["shakespeare"], "clients.count=7")


def test_the_seed_of_the_run_chooses_the_users(sets: dict[str, list[str]]) -> None:
    first = [load(*sets["femnist"], f"seed={seed}").clients[0].train_index for seed in range(4)]
    assert len({tuple(index.tolist()) for index in first}) > 1
    in_order = load(*sets["femnist"], "partition.take=first").clients
    assert [client.train_index.tolist() for client in in_order] == [
        list(range(9 * user, 9 * user + 9)) for user in range(3)
    ]
