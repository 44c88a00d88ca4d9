"""What the server's halves see, by hand: two clients with two numbers each."""

import copy
from collections.abc import Sequence

import pytest
import torch
from support.federations import take_step

from fedexp.aggregators.average import Average
from fedexp.core.messages import PartUpdate, Tensors, Update
from fedexp.core.part import Part
from fedexp.core.server import Server


def update(client: int, w: float, report: float, draws: int = 1) -> Update:
    extras = {"regularizer": {"r": torch.tensor(report)}, "sampler": {"s": torch.tensor(report)}}
    return Update(client, 10, {"w": torch.tensor([w])}, extras, draws=draws)


class Summing(Part):
    """Adds the mean of the reports to the merged weights."""

    summed = True
    seen: tuple[float, float, int]

    def correct(self, current: Tensors, merged: Tensors, sums: Tensors, clients: int) -> Tensors:
        self.seen = (current["w"].item(), merged["w"].item(), clients)
        return {"w": merged["w"] + sums["r"].float() / clients}

    def metrics(self) -> dict[str, float]:
        return {"regularizer/clients": self.seen[2]}


class Extracting(Part):
    """Keeps how far each client moved, beside what it reports."""

    moves: dict[int, dict[str, float]]

    def extract(self, weights: Tensors, current: Tensors) -> Tensors:
        return {"move": (weights["w"] - current["w"]).squeeze()}

    def aggregate(self, updates: Sequence[PartUpdate]) -> None:
        assert all(each.weights == {} for each in updates)
        self.moves = {
            each.client: {name: value.item() for name, value in each.extras.items()}
            for each in updates
        }


@pytest.fixture
def server() -> Server:
    aggregator = Average("uniform")
    parts = {"regularizer": Summing(), "sampler": Extracting(), "aggregator": aggregator}
    return Server({"w": torch.tensor([1.0])}, parts)


def test_sums_extracts_and_corrections(server: Server) -> None:
    server.add(update(0, 2.0, 0.5))
    server.add(update(1, 4.0, 1.5))
    assert server.weights["w"].item() == 1
    assert server.step() == 2
    assert server.weights["w"].item() == 3 + (0.5 + 1.5) / 2
    assert server.parts["regularizer"].seen == (1.0, 3.0, 2)  # type: ignore[attr-defined]
    moves = {0: {"s": 0.5, "move": 1.0}, 1: {"s": 1.5, "move": 3.0}}
    assert server.parts["sampler"].moves == moves  # type: ignore[attr-defined]
    assert server.metrics() == {"regularizer/clients": 2}
    assert server.step() == 0  # the updates count in one step
    assert server.weights["w"].item() == 4


def test_parts_get_the_updates_ordered_by_client_number(server: Server) -> None:
    take_step(server, [update(client, 0.0, 0.0) for client in (7, 2, 5)])
    assert list(server.parts["sampler"].moves) == [2, 5, 7]  # type: ignore[attr-defined]


def test_a_client_drawn_twice_counts_double(server: Server) -> None:
    take_step(server, [update(0, 2.0, 0.0, draws=2), update(1, 5.0, 0.0)])
    assert server.weights["w"].item() == 3


def test_without_updates_nothing_is_corrected(server: Server) -> None:
    assert server.step() == 0
    assert server.weights["w"].item() == 1
    assert server.metrics() == {}
    assert not hasattr(server.parts["regularizer"], "seen")
    assert not hasattr(server.parts["sampler"], "moves")


def test_two_processes_have_the_weights_of_one(server: Server) -> None:
    """Each adds one update, and both get the sums and the items of both."""
    other = copy.deepcopy(server)
    server.add(update(1, 4.0, 1.5))
    other.add(update(0, 2.0, 0.5))
    shares = [each.contribution() for each in (server, other)]
    assert shares[0].sums.keys() == shares[1].sums.keys()
    sums = {name: sum(share.sums[name].double() for share in shares) for name in shares[0].sums}
    for each in (server, other):
        each.set_reduced(sums, [share.items for share in shares])
        assert each.step() == 2
        assert each.weights["w"].item() == 3 + (0.5 + 1.5) / 2
        assert list(each.parts["sampler"].moves) == [0, 1]  # type: ignore[attr-defined]


def test_refused_weights_change_neither_model_nor_parts(server: Server) -> None:
    seen = []

    def refuse(weights: Tensors) -> bool:
        seen.append(weights["w"].item())
        return False

    server.add(update(0, 2.0, 0.5))
    server.add(update(1, 4.0, 1.5))
    assert server.step(refuse) == 2
    assert seen == [3.0]
    assert (server.weights["w"].item(), server.refused, server.metrics()) == (1.0, True, {})
    assert not hasattr(server.parts["sampler"], "moves")
    assert not hasattr(server.parts["regularizer"], "seen")


def test_corrected_weights_can_be_refused(server: Server) -> None:
    server.add(update(0, 2.0, 0.5))
    assert server.step(lambda weights: weights["w"].item() == 2.0) == 1
    assert (server.weights["w"].item(), server.refused) == (1.0, True)


def test_idle_rounds_are_consecutive_and_saved(server: Server) -> None:
    server.step()
    server.add(update(0, 2.0, 0.5))
    server.step(lambda weights: False)
    assert (server.idle_rounds, server.refused) == (2, True)
    state = server.state_dict()
    server.add(update(0, 2.0, 0.5))
    server.step()
    assert (server.idle_rounds, server.refused) == (0, False)
    server.load_state_dict(state)
    assert server.idle_rounds == 2
