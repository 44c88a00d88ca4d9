"""Who arrives when, by hand: an update is a number, and a turn takes the given seconds."""

from collections.abc import Iterable, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from fedexp.coordination.buffered import Buffered
from fedexp.coordination.flights import Flight, Flights
from fedexp.core.messages import Message, Update
from fedexp.core.part import Model
from fedexp.samplers.request import Request, Selected
from fedexp.system.devices import Devices
from fedexp.system.exchange import Exchange


class World:
    """Clients whose turns take ``seconds``; the lowest free numbers are chosen.

    The model is one number, the number of server steps so far. Client k adds 10^k to it.
    """

    def __init__(
        self, seconds: Sequence[float], in_flight: int, dropped: Sequence[int] = (), **keys
    ):
        defaults = {"staleness": "polynomial", "exponent": 0.5, "grace": 0, "slope": 1.0}
        self.buffered = Buffered(**{"buffer": 2, "step_from": "received", **defaults, **keys})
        self.clients, self.dropped = range(len(seconds)), dropped
        self.idle: set[int] = set()  # they train on no sample, although one was planned
        ones = np.ones(len(seconds))
        devices = Devices(1 / np.array(seconds), ones * np.inf, ones * np.inf, ones * 0.0)
        system: Any = SimpleNamespace(devices=devices, now=0.0)
        setting: Any = SimpleNamespace(clients_per_round=in_flight, model=Model({"w": ()}))
        self.buffered.setup(setting, system)
        self.requests: list[Request] = []
        self.trained: list[list[int]] = []
        self.schedule = SimpleNamespace(samples=lambda client, round: 1)
        self.round = 0

    def step(self) -> tuple[float, dict[int, float]]:
        """The time of the next server step, and client -> weight of its update."""
        self.round += 1
        weights = {"w": torch.tensor(float(self.round))}
        self.exchange = Exchange(Message(self.round, weights))
        arriving = self.buffered.updates(self.exchange, self.select, self)
        updates = list(self.exchange.count_arrivals(arriving))
        assert all(update.weights.keys() == {"w"} for update in updates)
        sent = {each.client: each.weights["w"].item() - self.round for each in updates}
        return self.buffered.system.now, {k: w / 10**k for k, w in sent.items()}

    def select(self, message: Message, request: Request) -> Selected:
        self.requests.append(request)
        free = [client for client in self.clients if client not in request.busy]
        chosen = self.exchange.count_cohort(free[: request.places])
        return Selected(chosen, [client for client in chosen if client not in self.dropped])

    def train(self, clients: Sequence[int], message: Message) -> Iterable[Update]:
        """As an engine does; the world is its own engine."""
        self.trained.append(list(clients))
        for client in clients:
            trained = {"w": message.weights["w"] + 10.0**client}
            yield Update(client, 1, trained, samples=int(client not in self.idle), steps=1)


def test_four_clients_of_different_speeds() -> None:
    world = World(seconds=[2, 3, 7, 4], in_flight=2)
    # 0 and 1 start at 0; 0 ends at 2, and 2 takes its place until 9; 1 ends at 3.
    assert world.step() == (3, {0: 1, 1: 1})
    # 0 starts at 3 and ends at 5; 1 takes its place until 8, before 2 has ended.
    assert world.step() == (8, {0: 1, 1: 1})
    # 0 starts at 8; at 9 comes 2, two steps stale; 1 takes its place; 0 ends at 10.
    now, weights = world.step()
    assert now == 10
    assert weights == pytest.approx({2: 3**-0.5, 0: 1})
    assert world.buffered.metrics() == {"coordination/in_flight": 1, "coordination/staleness": 1}
    time = world.buffered.advance(world.exchange)
    assert (time.seconds, time.end, time.of_clients) == (2, 10, {2: 7, 0: 2})
    assert [(each.selection, each.places, sorted(each.busy)) for each in world.requests] == [
        *[(0, 2, []), (1, 1, [0, 1])],
        *[(0, 1, [2]), (1, 1, [0, 2])],
        *[(0, 1, [2]), (1, 1, [0, 2])],
    ]


def test_clients_are_trained_together_if_none_can_be_the_next_to_arrive() -> None:
    world = World(seconds=[2, 3, 7, 4], in_flight=2)
    for _ in range(3):
        world.step()
    # 2 starts at 2, to end at 9: it is trained at the step, at 3. In the second step 0 and then 1
    # could arrive before it; in the third 2 arrives first, and then 0 or 1.
    assert [clients for clients in world.trained if clients] == [[0, 1], [2], [0], [1], [0, 1]]
    slow = World(seconds=[2, 9, 9, 9, 9, 3], in_flight=4)
    slow.step()
    assert slow.trained == [[0, 1, 2, 3], [4]]
    slow = World(seconds=[2, 3, 4, 9, 9, 9, 9], in_flight=4, buffer=3)
    slow.step()
    assert slow.trained == [[0, 1, 2, 3], [4, 5]]  # they start at 2 and at 3


def test_a_step_takes_no_more_updates_than_the_buffer_holds() -> None:
    world = World(seconds=[5, 5, 5, 5], in_flight=3)
    assert world.step() == (5, {0: 1, 1: 1})
    # 2 came at the same instant: it waits in the next buffer, and nobody starts before.
    assert world.buffered.metrics()["coordination/in_flight"] == 0
    now, weights = world.step()
    assert now == 10
    assert weights == pytest.approx({2: 2**-0.5, 0: 1})
    assert (world.requests[1].places, sorted(world.requests[1].busy)) == (3, [2])
    assert [len(each.busy) for each in world.requests] == [0, 1]


def test_every_update_makes_a_step_without_a_buffer() -> None:
    world = World(seconds=[1, 3], in_flight=2, buffer=1, staleness="hinge", slope=3.0)
    assert [world.step() for _ in range(3)] == [(1, {0: 1}), (2, {0: 1}), (3, {0: 1})]
    assert world.step() == (3, {1: pytest.approx(1 / 10)})  # staleness 3


def test_the_step_may_count_from_the_current_model() -> None:
    world = World(seconds=[1, 2], in_flight=2, buffer=1, staleness="constant", step_from="current")
    world.step()
    now, weights = world.step()
    assert (now, weights) == (2, {0: 1})
    # 1 started from the model 1 and sends 11; the current model is 3.
    assert world.step() == (2, {1: (11 - 3) / 10})


def test_the_clock_never_goes_back() -> None:
    world = World(seconds=[2, 3, 9, 9], in_flight=2, buffer=3)
    world.idle = {2}  # it starts at 2 and is planned until 11, so 1 arrives first, at 3
    assert world.step() == (3, {0: 1, 1: 1, 2: 1})


def test_a_client_that_drops_out_gives_its_place_to_another() -> None:
    world = World(seconds=[2, 3, 4], in_flight=2, dropped=[0])
    assert world.step() == (4, {1: 1, 2: 1})  # the word of 0 comes at once, and 2 starts
    outcomes = [(turn.client, turn.outcome) for turn in world.exchange.turns]
    begins = [(0, "dropped"), (1, "started"), (2, "started")]
    assert outcomes == [*begins, (1, "refused"), (2, "refused")]  # nobody has accepted them here


def test_a_client_that_has_dropped_out_does_not_work_until_its_notice_comes() -> None:
    flights = Flights()
    for client, update in enumerate([None, Update(1, 1, {})]):
        flights.begin(Flight(client, 1, 0.0, 5.0, {}, update))
    assert [flights.working(now) for now in (4.0, 5.0)] == [1, 0]
    assert flights.clients == {0, 1}


def test_the_server_steps_with_fewer_updates_if_nobody_is_in_flight() -> None:
    world = World(seconds=[2, 3], in_flight=2, dropped=[0])
    assert world.step() == (3, {1: 1})
    world.dropped = [0, 1]
    assert world.step() == (3, {})
    assert world.buffered.metrics() == {"coordination/in_flight": 0}


def test_flights_are_restored_from_a_checkpoint() -> None:
    world, second = (World(seconds=[2, 3, 7, 4], in_flight=2) for _ in range(2))
    for each in (world, second):
        each.buffered.system.state_dict = dict  # type: ignore[method-assign]
        each.buffered.system.load_state_dict = lambda state: None  # type: ignore[method-assign]
    world.step()
    second.buffered.load_state_dict(world.buffered.state_dict())
    second.round, second.buffered.system.now = world.round, world.buffered.system.now
    assert second.requests == []
    for _ in range(3):
        assert second.step() == world.step()
