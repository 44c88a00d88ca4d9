from collections.abc import Iterable, Iterator
from typing import TypeVar

import numpy as np
import pytest
import torch

from fedexp.distributed.placement import Placement, balance, place
from fedexp.distributed.ranks import Ranks
from fedexp.state.client_state import ClientState
from fedexp.state.client_store import ClientStore

T = TypeVar("T")
SIZES = [7, 1, 5, 5, 3, 3]


def test_longest_first_to_the_rank_with_least_to_do() -> None:
    placed = place(range(6), SIZES, {}, [1] * 2)
    # 0 (7) to rank 0; 2 (5) and 3 (5) to rank 1, which then has 10; 4 (3) to 0: 10; 5 to 0; 1 to 1.
    assert placed == {0: 0, 2: 1, 3: 1, 4: 0, 5: 0, 1: 1}


def test_who_keeps_something_stays_and_counts_as_load() -> None:
    placed = place([0, 1, 2, 3], SIZES, {2: 1, 1: 1, 5: 0}, [1] * 2)
    assert placed == {
        2: 1,
        1: 1,
        0: 0,
        3: 1,
    }  # rank 1 has 6 before the others: 0 takes 7, 1 takes 5


def test_more_ranks_than_clients() -> None:
    assert place([4, 0], SIZES, {}, [1] * 5) == {0: 0, 4: 1}
    assert place([], SIZES, {}, [1] * 3) == {}


def test_the_order_of_the_clients_does_not_matter() -> None:
    assert place([5, 3, 1, 0], SIZES, {1: 0}, [1] * 3) == place(
        [0, 1, 3, 5], SIZES, {1: 0}, [1] * 3
    )


def test_a_client_leaves_home_where_that_evens_the_load() -> None:
    # All are at rank 0; 7 + 3 and 5 + 5 are even, and 7 and 3 stay.
    assert balance([0, 2, 3, 4], SIZES, dict.fromkeys(range(6), 0), [1, 1]) == {
        0: 0,
        4: 0,
        2: 1,
        3: 1,
    }
    # Each rank has one of the two that are equally large: nobody moves.
    assert balance([2, 3], SIZES, {2: 1, 3: 0}, [1, 1]) == {2: 1, 3: 0}


def test_cohorts_of_clients_with_homes_are_nearly_even() -> None:
    generator = np.random.default_rng(0)
    sizes, homes, ratios = generator.integers(50, 500, 100), dict[int, int](), []
    for _ in range(100):
        cohort = generator.choice(100, 10, replace=False).tolist()
        placed = balance(cohort, sizes, homes, [1, 1])
        homes |= placed
        loads = [sum(sizes[c] for c in cohort if placed[c] == rank) for rank in (0, 1)]
        ratios.append(max(loads) / np.mean(loads))
    assert np.mean(ratios) < 1.05  # 1.3 if clients stay at home


def test_a_fast_rank_gets_more() -> None:
    placed = place(range(12), [5] * 12, {}, [1.5, 0.5])
    assert sorted(placed.values()) == [0] * 9 + [1] * 3
    # 5 / 1.5 is less than 5 / 0.5, but one that has its state at the slow rank alone stays there.
    assert place([0], [5], {}, [0.5, 1.5]) == {0: 1}
    assert place([0], [5], {0: 0}, [0.5, 1.5]) == {0: 0}
    assert balance(range(4), [5] * 4, dict.fromkeys(range(4), 0), [0.5, 1.5]) == {
        0: 0,
        **dict.fromkeys((1, 2, 3), 1),
    }


class Scripted(Ranks):
    """One of two ranks; the other one sends ``arriving``."""

    size = 2

    def __init__(self, rank: int, arriving: Iterable[tuple[int, ClientState]] = ()) -> None:
        self.rank, self.arriving = rank, arriving
        self.sent: list[object] = []

    def iterate_gathered(self, items: Iterable[T]) -> Iterator[T]:
        self.sent = list(items)
        yield from self.sent  # type: ignore[misc]
        yield from self.arriving  # type: ignore[misc]


def with_states(clients: Iterable[int]) -> ClientStore:
    store = ClientStore("all", 1e9)
    for client in clients:
        store.put(client, state_of(client))
    return store


def state_of(client: int) -> ClientState:
    return ClientState(private={"w": torch.full((1,), float(client))})


def test_every_client_is_at_one_rank_and_keeps_its_draws() -> None:
    cohort = [0, 3, 3, 5]
    placements = [
        Placement(Scripted(rank), SIZES, with_states([]), by_time=False) for rank in (0, 1)
    ]
    assert [each.local_clients(cohort) for each in placements] == [[0], [3, 3, 5]]
    assert [each.bring(cohort) for each in placements] == [[0], [3, 3, 5]]
    alone = Placement(Ranks(), SIZES, with_states([]), by_time=False)
    assert alone.local_clients(cohort) == alone.bring(cohort) == cohort


def test_states_go_where_their_clients_are_trained() -> None:
    stores = with_states([0, 2, 3, 4]), with_states([5])
    leaving = Scripted(0)
    ranks = leaving, Scripted(1, ((client, state_of(client)) for client in (2, 3)))
    for rank, store, expected in zip(ranks, stores, ([4, 0], [3, 2]), strict=True):
        placement = Placement(rank, SIZES, store, by_time=False)
        placement.set_reduced({}, [([0, 2, 3, 4], (0, 0)), ([5], (0, 0))])
        assert placement.bring([4, 3, 2, 0]) == expected
        assert placement.bring([4, 3, 2, 0]) == expected  # nothing is left to move
    assert [client for client, _ in leaving.sent] == [2, 3]  # type: ignore[misc,attr-defined]
    assert [store.clients_with_state for store in stores] == [[0, 4], [2, 3, 5]]
    assert stores[1].private(3) == {"w": torch.tensor([3.0])}


@pytest.mark.parametrize(("by_time", "expected"), [(True, [0, 1, 2]), (False, [0, 2])])
def test_only_by_time_a_fast_rank_trains_more(by_time: bool, expected: list[int]) -> None:
    placement = Placement(Scripted(0), [4] * 4, with_states([]), by_time)
    placement.set_reduced({}, [([], (300, 1.0)), ([], (100, 1.0))])
    assert placement.bring([0, 1, 2, 3]) == expected


def test_states_are_evened_out_by_number() -> None:
    store = with_states([0, 1, 2, 3])
    placement = Placement(Scripted(0), SIZES, store, by_time=False)
    placement.set_reduced({}, [([0, 1, 2, 3], (0, 0)), ([], (0, 0))])
    placement.even_out()
    assert len(store.clients_with_state) == 2


@pytest.mark.parametrize("kind", ["memory", "private", "separate_model", "personal_model"])
def test_a_client_is_at_home_where_it_keeps_something(kind: str) -> None:
    store = ClientStore("all", 1e9)
    with store.open(4) as state:
        if kind == "memory":
            state.memory("loss")["w"] = torch.ones(1)
        else:
            setattr(state, kind, {"w": torch.ones(1)})
    with store.open(0):
        pass  # keeps nothing
    placement = Placement(Scripted(1), SIZES, store, by_time=False)
    assert placement.contribution().items == ([4], (0, 0))
    assert 4 not in placement.local_clients([4])
    placement.set_reduced({}, [([], (0, 0)), ([4], (0, 0))])
    assert placement.local_clients([4, 0]) == [4]
