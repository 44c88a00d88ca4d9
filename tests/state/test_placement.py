import pytest
import torch

from fedexp.distributed.placement import Placement, place
from fedexp.distributed.ranks import Ranks
from fedexp.state.client_store import ClientStore

SIZES = [7, 1, 5, 5, 3, 3]


def test_longest_first_to_the_rank_with_least_to_do() -> None:
    placed = place(range(6), SIZES, {}, 2)
    # 0 (7) to rank 0; 2 (5) and 3 (5) to rank 1, which then has 10; 4 (3) to 0: 10; 5 to 0; 1 to 1.
    assert placed == {0: 0, 2: 1, 3: 1, 4: 0, 5: 0, 1: 1}


def test_who_keeps_something_stays_and_counts_as_load() -> None:
    placed = place([0, 1, 2, 3], SIZES, {2: 1, 1: 1, 5: 0}, 2)
    assert placed == {
        2: 1,
        1: 1,
        0: 0,
        3: 1,
    }  # rank 1 has 6 before the others: 0 takes 7, 1 takes 5


def test_more_ranks_than_clients() -> None:
    assert place([4, 0], SIZES, {}, 5) == {0: 0, 4: 1}
    assert place([], SIZES, {}, 3) == {}


def test_the_order_of_the_clients_does_not_matter() -> None:
    assert place([5, 3, 1, 0], SIZES, {1: 0}, 3) == place([0, 1, 3, 5], SIZES, {1: 0}, 3)


def ranks(rank: int, size: int) -> Ranks:
    found = Ranks()
    found.rank, found.size = rank, size
    return found


def test_every_client_is_at_one_rank_and_keeps_its_draws() -> None:
    cohort = [0, 3, 3, 5]
    shares = [Placement(ranks(r, 2), SIZES, list).local_clients(cohort) for r in (0, 1)]
    assert shares == [[0], [3, 3, 5]]
    assert Placement(Ranks(), SIZES, list).local_clients(cohort) == cohort


@pytest.mark.parametrize("kind", ["memory", "private", "separate_model", "personal_model"])
def test_a_client_stays_where_it_keeps_something(kind: str) -> None:
    store = ClientStore("all", 1e9)
    with store.open(4) as state:
        if kind == "memory":
            state.memory("loss")["w"] = torch.ones(1)
        else:
            setattr(state, kind, {"w": torch.ones(1)})
    with store.open(0):
        pass  # keeps nothing
    placement = Placement(ranks(1, 2), SIZES, lambda: store.clients_with_state)
    assert placement.contribution().items == [4]
    assert 4 not in placement.local_clients([4])
    placement.set_reduced({}, [[], [4]])
    assert placement.local_clients([4, 0]) == [4]
