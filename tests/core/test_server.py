"""What the server's halves see, by hand: two clients with two numbers each."""

import pytest
import torch

from fedexp.aggregators.average import Average
from fedexp.core.messages import Tensors, Update
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

    def extract(self, update: Update, current: Tensors) -> Tensors:
        return {"move": (update.weights["w"] - current["w"]).squeeze()}

    def aggregate(self, updates: list[Update]) -> None:  # type: ignore[override]
        assert all(each.weights == {} and not each.extras["regularizer"] for each in updates)
        self.moves = {
            each.client: {name: value.item() for name, value in each.extras["sampler"].items()}
            for each in updates
        }


@pytest.fixture
def server() -> Server:
    aggregator = Average("uniform")
    parts = {"regularizer": Summing(), "sampler": Extracting(), "aggregator": aggregator}
    return Server({"w": torch.tensor([1.0])}, aggregator, parts)


def test_sums_extracts_and_corrections(server: Server) -> None:
    server.aggregate([update(0, 2.0, 0.5), update(1, 4.0, 1.5)])
    assert server.weights["w"].item() == 3 + (0.5 + 1.5) / 2
    assert server.parts["regularizer"].seen == (1.0, 3.0, 2)  # type: ignore[attr-defined]
    moves = {0: {"s": 0.5, "move": 1.0}, 1: {"s": 1.5, "move": 3.0}}
    assert server.parts["sampler"].moves == moves  # type: ignore[attr-defined]
    assert server.metrics() == {"regularizer/clients": 2}


def test_a_client_drawn_twice_counts_double(server: Server) -> None:
    server.aggregate([update(0, 2.0, 0.0, draws=2), update(1, 5.0, 0.0)])
    assert server.weights["w"].item() == 3


def test_without_updates_nothing_is_corrected(server: Server) -> None:
    server.aggregate([])
    assert server.weights["w"].item() == 1
