import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.partition_checks import assert_complete, quick

from fedexp.core.randomness import numpy_generator
from fedexp.data.partitions import natural

PEOPLE = ["ann", "bob", "cem", "dan", "eve"]


@quick
@given(
    users=st.lists(st.sampled_from(PEOPLE), min_size=1, max_size=60),
    seed=st.integers(0, 2**31),
    data=st.data(),
)
def test_a_group_keeps_a_users_samples_together(
    users: list[str], seed: int, data: st.DataObject
) -> None:
    num_clients = data.draw(st.integers(1, len(set(users))))
    clients = natural(np.array(users), num_clients, seed, take="group")
    assert_complete(clients, len(users), num_clients)
    held = [{users[sample] for sample in index} for index in clients]
    assert sum(map(len, held)) == len(set(users))
    assert max(map(len, held)) - min(map(len, held)) <= 1


def test_a_group_is_drawn_as_before() -> None:
    """Users numbered by name and dealt by one permutation of 0, 1, 0, 1, ..."""
    users = np.array(["d", "a", "c", "b", "e", "a"])
    client = numpy_generator(3, "partition").permutation(np.arange(5) % 2)
    expected = client[[3, 0, 2, 1, 4, 0]]
    for number, index in enumerate(natural(users, 2, 3, take="group")):
        assert index.tolist() == np.flatnonzero(expected == number).tolist()


@pytest.mark.parametrize("take", ["random", "first", "group"])
def test_as_many_clients_as_users(take: str) -> None:
    users = np.array(PEOPLE * 3)
    clients = natural(users, 5, 0, take=take)  # type: ignore[arg-type]
    assert_complete(clients, 15, 5)
    assert sorted(users[index[0]] for index in clients) == PEOPLE


@quick
@given(
    users=st.lists(st.sampled_from(PEOPLE), min_size=1, max_size=60),
    seed=st.integers(0, 2**31),
    data=st.data(),
)
def test_users_that_are_taken_are_taken_whole(
    users: list[str], seed: int, data: st.DataObject
) -> None:
    num_clients = data.draw(st.integers(1, len(set(users))))
    in_order = list(dict.fromkeys(users))
    for take in ("random", "first"):
        clients = natural(np.array(users), num_clients, seed, take=take)  # type: ignore[arg-type]
        owners = [{users[sample] for sample in index} for index in clients]
        assert all(len(each) == 1 for each in owners)
        taken = [each.pop() for each in owners]
        assert len(set(taken)) == num_clients
        for user, index in zip(taken, clients, strict=True):
            assert index.tolist() == [i for i, each in enumerate(users) if each == user]
        if take == "first":
            assert taken == in_order[:num_clients]


def test_the_seed_chooses_all_users_alike() -> None:
    users = np.array(PEOPLE)
    taken = np.concatenate([natural(users, 2, seed)[0] for seed in range(500)])
    assert np.bincount(taken, minlength=5) == pytest.approx(100, abs=40)


def test_fewer_users_than_clients_are_cut_into_parts() -> None:
    """The six centres of Fed-ISIC2019 and 20 clients: 10, 3, 3, 2, 1 and 1 parts.

    Of 20 the shares are 10.68, 3.40, 2.89, 1.94, 0.70 and 0.38: the largest remainders give 11, 3,
    3, 2, 1 and 0, and the last centre gets one of the first.
    """
    sizes = [9930, 3163, 2691, 1807, 655, 351]
    users = np.repeat(np.arange(6), sizes)
    clients = natural(users, 20, 0, split_users="even")
    assert_complete(clients, sum(sizes), 20)
    owners = [set(users[index]) for index in clients]
    assert all(len(each) == 1 for each in owners)
    assert [each.pop() for each in owners] == [0] * 10 + [1] * 3 + [2] * 3 + [3] * 2 + [4, 5]
    assert [len(index) for index in clients[:16]] == [993] * 10 + [1055, 1054, 1054] + [897] * 3
    assert not np.array_equal(clients[0], np.arange(993))  # at random
    other = natural(users, 20, 1, split_users="even")
    assert not np.array_equal(clients[0], other[0])


def test_parts_matter_only_with_fewer_users() -> None:
    users = np.array(PEOPLE * 2)
    for one, other in zip(
        natural(users, 3, 0), natural(users, 3, 0, split_users="even"), strict=True
    ):
        assert np.array_equal(one, other)
